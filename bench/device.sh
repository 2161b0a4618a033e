#!/usr/bin/env bash
# For a machine with an NVIDIA GPU, about 4 minutes: builds, tests the kernels on the card, measures.
#
#   bench/device.sh [FOLDER]        writes FOLDER/device-<card>.md (default: bench/results)
#   bench/device.sh --dry [FOLDER]  the same way on CPU tensors, tiny, in the present environment
#
# PYTHON         interpreter (default: python3)
# DEVICE_VENV    environment to use or make; sees the packages already there, so that torch need not
#                be installed twice (default: build/device/venv)
# DEVICE_WHEELS  folder of wheels, where there is no network: pip then looks nowhere else. Filled by
#                  pip download -d wheels '.[test]' scikit-build-core pybind11 cmake ninja
#                (on the same platform and Python). An oasis_select wheel in it, from `make wheel`,
#                is installed instead of a build: no nvcc needed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
PYTHON=${PYTHON:-python3}

if [ "${1:-}" = --dry ]; then
  OASIS_TEST_DEVICE=cpu "$PYTHON" -m pytest -p no:cacheprovider tests/gpu/test_device.py
  exec "$PYTHON" -m bench.device --dry --out "${2:-build/device}"
fi
mkdir -p "${1:-bench/results}"
out=$(cd "${1:-bench/results}" && pwd)

venv=${DEVICE_VENV:-build/device/venv}
[ -x "$venv/bin/python" ] || "$PYTHON" -m venv --system-site-packages "$venv"
PYTHON=$(cd "$venv/bin" && pwd)/python
package=$root
if [ -n "${DEVICE_WHEELS:-}" ]; then
  DEVICE_WHEELS=$(cd "$DEVICE_WHEELS" && pwd)
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=$DEVICE_WHEELS # also inside isolated builds
  for wheel in "$DEVICE_WHEELS"/oasis_select-*.whl; do
    [ -e "$wheel" ] && package=$wheel
  done
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1
# What is there is taken as it is: pip would also repair what else an image's torch asks for.
"$PYTHON" -c 'import torch, numpy' || "$PYTHON" -m pip install -q 'torch>=2.6' numpy
"$PYTHON" -c 'import pytest, hypothesis, mpmath' ||
  "$PYTHON" -m pip install -q 'pytest>=8' hypothesis mpmath
# Not editable: what is tested is what users install.
"$PYTHON" -m pip install -q --force-reinstall --no-deps -C cmake.define.OASIS_CUDA=ON "$package"

# Away from the checkout, whose package has no compiled core and would be imported first.
stage=build/device/stage
rm -rf "$stage"
mkdir -p "$stage"
cp -r tests bench pyproject.toml "$stage"
cd "$stage"
"$PYTHON" - <<'EOF'
import torch

from oasis import _core

if not torch.cuda.is_available():
    raise SystemExit("no GPU that torch can use was found; bench/device.sh --dry runs on the CPU")
if not _core.build_info()["cuda"]:
    raise SystemExit("this build of oasis has no CUDA kernels: put nvcc on the PATH")
EOF

# The kernels' tests; test_device.py, first, is collected because there is a GPU.
tests=()
for name in device grad_gram siren mean_field oris selector selector_refusals stream reference ops \
  head_gram head_gram_inputs head_regimes vocabulary triton_head; do
  for room in gpu core lab; do
    [ -e "tests/$room/test_$name.py" ] && tests+=("tests/$room/test_$name.py")
  done
done
status=0
"$PYTHON" -m pytest -p no:cacheprovider "${tests[@]}" 2>&1 | tee pytest.log || status=$?
# Measured even if a test failed: the report says so, and so does the exit status.
"$PYTHON" -m bench.device --out "$out" --tests "$(tail -n 1 pytest.log | tr -d =)" || status=$?
exit "$status"
