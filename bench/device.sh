#!/usr/bin/env bash
# For a machine with an NVIDIA GPU, under 8 minutes: builds, tests every kernel on the card, measures,
# trains a little.
#
#   bench/device.sh [FOLDER]        writes FOLDER/device-<card>.md (default: bench/results) row by row
#   bench/device.sh --dry [FOLDER]  the same way on CPU tensors, tiny, in the present environment
#
# PYTHON         interpreter (default: python3), taken as it is and left as it is: what it lacks, and
#                this package, go to build/device/packages
# DEVICE_WHEELS  folder of wheels, where there is no network: pip then looks nowhere else. Filled by
#                  pip download -d wheels '.[test]' scikit-build-core pybind11 cmake ninja
#                (on the same platform and Python). An oasis_select wheel in it, from `make wheel`,
#                is installed instead of a build: no nvcc needed.
# DEVICE_CUDA    OFF builds without the CUDA kernels: a rehearsal on a machine without nvcc
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
PYTHON=${PYTHON:-python3}

tests=(tests/gpu/test_device.py tests/gpu/test_device_sketches.py)
if [ "${1:-}" = --dry ]; then
  OASIS_TEST_DEVICE=cpu "$PYTHON" -m pytest -p no:cacheprovider "${tests[@]}"
  exec "$PYTHON" -m bench.device --dry --out "${2:-build/device}"
fi
mkdir -p "${1:-bench/results}"
out=$(cd "${1:-bench/results}" && pwd)
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin

package=$root
if [ -n "${DEVICE_WHEELS:-}" ]; then
  DEVICE_WHEELS=$(cd "$DEVICE_WHEELS" && pwd)
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=$DEVICE_WHEELS # also inside isolated builds
  for wheel in "$DEVICE_WHEELS"/oasis_select-*.whl; do
    [ -e "$wheel" ] && package=$wheel
  done
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1
packages=$root/build/device/packages
rm -rf "$packages"
export PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH}
imports() { "$PYTHON" -c "import ${1// /, }" 2>/dev/null; }
into_packages() { "$PYTHON" -m pip install -q --target "$packages" "$@"; }
imports "torch numpy" || into_packages 'torch>=2.6' numpy
imports "pytest hypothesis mpmath" || into_packages 'pytest>=8' hypothesis mpmath
# Build isolation would ask an index for what is here.
isolation=()
imports "scikit_build_core pybind11" && isolation=(--no-build-isolation)
# For this card alone, where torch sees one: a third of the time.
card=$("$PYTHON" -c 'import torch; torch.cuda.is_available() and print("{}{}".format(*torch.cuda.get_device_capability()))')
# Not editable: what is tested is what users install.
into_packages --no-deps "${isolation[@]}" -C cmake.define.OASIS_CUDA="${DEVICE_CUDA:-ON}" \
  ${card:+-C cmake.define.CMAKE_CUDA_ARCHITECTURES="$card"} "$package"

# Away from the checkout, whose package has no compiled core and would be imported first.
stage=build/device/stage
rm -rf "$stage"
mkdir -p "$stage"
cp -r tests bench pyproject.toml "$stage"
cd "$stage"
"$PYTHON" - <<'PYTHON'
import torch

from oasis import _core

if not torch.cuda.is_available():
    raise SystemExit("no GPU that torch can use was found; bench/device.sh --dry runs on the CPU")
if not _core.build_info()["cuda"]:
    raise SystemExit("this build of oasis has no CUDA kernels: put nvcc on the PATH")
PYTHON

# Correct first: every kernel on the card against the CPU, then those of Triton ahead of time. The
# rest of the suite is the CPU's, and has no need of a card. A hanging kernel ends after 3 minutes.
imports triton && tests+=(tests/gpu/test_triton_head.py)
status=0
timeout 180 "$PYTHON" -m pytest -rs -p no:cacheprovider "${tests[@]}" 2>&1 | tee pytest.log || status=$?
# Measured even if a test failed: the report says so, and so does the exit status.
"$PYTHON" -m bench.device --out "$out" --tests "$(tail -n 1 pytest.log | tr -d =)" || status=$?
exit "$status"
