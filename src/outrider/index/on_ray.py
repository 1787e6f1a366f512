"""A corpus built by Ray on many machines: each sorts a part, and the parts become one file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outrider.errors import OptionError
from outrider.index.corpus import build, merge
from outrider.index.documents import read


def build_on_ray(
    files: Sequence[Path],
    path: str | Path,
    load_tokenizer: Callable[[], Any],
    *,
    part_bytes: int = 1 << 26,
    on_part: Callable[[int], None] | None = None,
) -> int:
    """As `corpus.build`, over `ray.data`, on the cluster that Ray is connected to, or on this machine alone.

    **Arguments:**

    - `files`: Readable under these paths on every machine.
    - `path`: In a folder that every machine can write to.
    - `load_tokenizer`: Called on each machine.
    - `part_bytes`: Text of a part.
    - `on_part`: Called with each finished part's number of tokens.

    **Raises:** `OptionError` where Ray is not installed, or no file holds text.
    """
    try:
        import ray.data
    except ImportError as error:
        raise OptionError("--engine ray needs Ray; run: pip install 'outrider[ray]'") from error
    target = Path(path).resolve()
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-parts-", dir=target.parent))

    def build_part(row: dict[str, Any]) -> dict[str, Any]:
        tokenizer = load_tokenizer()
        out = folder / f"{row['number']:06}"
        try:
            documents = read(map(Path, row["files"]), tokenizer)
            num_tokens = build(documents, out, tokenizer=tokenizer, part_tokens=1 << 30)
        except OptionError:  # files without text
            num_tokens = 0
        return {"number": row["number"], "num_tokens": num_tokens}

    groups = [
        {"number": number, "files": [str(file.resolve()) for file in group]}
        for number, group in enumerate(_groups(files, part_bytes))
    ]
    try:
        parts = ray.data.from_items(groups, override_num_blocks=len(groups)).map(build_part)
        for done in parts.iter_rows():
            if on_part is not None:
                on_part(int(done["num_tokens"]))
        built = sorted(folder.glob("[0-9]*"))
        if not built:
            raise OptionError("there is no text in these documents, so there is nothing to index")
        return merge(built, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _groups(files: Sequence[Path], part_bytes: int) -> list[list[Path]]:
    groups: list[list[Path]] = [[]]
    size = 0
    for file in files:
        bytes_here = file.stat().st_size
        if groups[-1] and size + bytes_here > part_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += bytes_here
    return groups
