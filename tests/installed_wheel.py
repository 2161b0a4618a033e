"""Run by `make check-wheel`: the installed wheel in a fresh environment without a compiler."""

import json
import pathlib
import sys

import torch

import oasis
from oasis import doctor, siren


def main(vectors: pathlib.Path) -> int:
    package = pathlib.Path(oasis.__file__).parent
    for name in ("py.typed", "_core.pyi"):
        assert (package / name).exists(), f"{name}: got no such file in the wheel"
    assert not list(package.rglob("*.cu*")), "got CUDA sources in the wheel"
    for case in json.loads((vectors / "siren.json").read_text()):
        gram = oasis.grad_gram(torch.tensor(case["grads"], dtype=torch.float64))
        result = siren(gram)
        want = torch.tensor(case["adjusted"], dtype=torch.float64)
        torch.testing.assert_close(result.adjusted, want, rtol=1e-10, atol=1e-10)
        assert result.order.tolist() == case["order"], case["name"]
    for case in json.loads((vectors / "head_gram.json").read_text()):
        tensor = {k: torch.tensor(case[k], dtype=torch.float64) for k in ("hidden", "weight")}
        result = oasis.head_gram(
            **tensor,
            labels=torch.tensor(case["labels"]),
            sample=torch.tensor(case["sample"]),
            num_samples=case["n"],
            bias=None if case["bias"] is None else torch.tensor(case["bias"], dtype=torch.float64),
            softcap=case["softcap"],
            scale=case["scale"],
            reduction=case["reduction"],
        )
        want = torch.tensor(case["gram"], dtype=torch.float64)
        torch.testing.assert_close(result.gram, want, rtol=1e-9, atol=0)
    for case in json.loads((vectors / "threshold.json").read_text()):
        assert abs(oasis.threshold(case["ratio"]) - case["threshold"]) < 1e-9
    assert oasis.select(torch.randn(16, 1000)).mask.shape == (16,)
    return doctor.main()


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
