"""Which data set a run was trained on: recorded in the run's folder, refused when it changes.

The record is `data.json` beside a copy of the tokenizer, so that a run generates text without the
data set, and never continues on other data under the same name.
"""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from conf.cli import CONF, override
from conf.records import read_record
from data.index import INDEX_FILE, Index, read_index
from data.sets import Prepared, Sets, first
from data.tokenizer import FILES, Tokenizer, to_type, tokenizer_path

RECORD = "data.json"

# The choices that `python -m data.prepare` makes when nothing is typed (conf/prepare.yaml).
_DEFAULTS = {"data": "stdlib", "tokenizer": "sentencepiece_2k"}


def bind(run: Path, sets: Sets, *, force: bool = False, step: int = 0) -> None:
    """Records that `run` uses these prepared data sets, or checks that it still does.

    Args:
        force: continue on other data all the same; what was used before stays in the record.
        step: optimizer steps that the run has done.

    Raises:
        ValueError: the run was started on other data, every difference is named; or its record
            is damaged.
    """
    path = run / RECORD
    given = _described(sets)
    if path.is_file():
        saved = _record(run)
        earlier = saved.pop("replaced", [])
        differences = _differences(saved, given)
        if differences and not force:
            raise ValueError(
                f"run {run.name!r} was started on other data: the text or the tokenizer changed.\n"
                + "\n".join(f"  {line}" for line in differences)
                + "\nRestore it, or start a new run: run.name=NAME. To continue this one on what "
                "is given now, type data.force=true"
            )
        if differences:
            earlier = [*earlier, saved | {"until_step": step}]
            print(
                f"note: data.force=true: from step {step} on other data:\n"
                + "\n".join(f"  {line}" for line in differences),
                file=sys.stderr,
            )
        if saved == given and not differences:
            return
        given |= {"replaced": earlier} if earlier else {}
    _copy_tokenizer(first(sets), run)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(given, indent=2) + "\n")
    os.replace(partial, path)


def bound(run: Path, config: Mapping[str, Any]) -> Sets:
    """The prepared data sets of a run, or others beside them with the same contents.

    config: the run's configuration, whose sections data and tokenizer tell how to prepare it again.

    Raises:
        ValueError: the run has no record, or its data set is gone or has changed.
    """
    path = run / RECORD
    if not path.is_file():
        raise ValueError(f"{run} has no {RECORD}: the run never started training")
    sources = _sources(_record(run))
    return {name: _bound(run, name, source, config) for name, source in sources.items()}


def _bound(run: Path, name: str, saved: Mapping[str, Any], config: Mapping[str, Any]) -> Prepared:
    folder, fingerprint = Path(saved["folder"]), saved["fingerprint"]
    if not (folder / INDEX_FILE).is_file():
        same = _same_contents(folder.parent, fingerprint)
        if same is None:
            raise ValueError(
                f"the data set {folder} of run {run.name!r} (contents {fingerprint}) is gone, and "
                f"none in {folder.parent} has the same contents. {_way_out(name, config)}"
            )
        folder = same
    index = read_index(folder)
    if index.fingerprint != fingerprint:
        raise ValueError(
            f"{folder} has contents {index.fingerprint}, but run {run.name!r} was trained on "
            f"{fingerprint}. {_way_out(name, config)}"
        )
    return Prepared(folder, index)


def check_tokenizer(run: Path, folder: Path, index: Index, is_given: bool) -> None:
    """Refuses the weights of `run` for training on `folder` where their token ids mean other text.

    is_given: `folder` is used as it is (data.dir, data.sources), whatever the settings of text and
        tokenizer.

    Raises:
        ValueError: the tokenizers differ, or the run's record is gone or damaged.
    """
    saved = _record(run)
    if saved["tokenizer_fingerprint"] == index.tokenizer_fingerprint:
        return
    kept = tokenizer_of(run)
    text = "data.dir=null data.sources=null data.files=FILES " if is_given else ""
    raise ValueError(
        f"the weights of run {run.name!r} belong to its tokenizer {tokenizer_path(run)} "
        f"({kept.kind}, {kept.size:,} ids, {kept.fingerprint}), but {folder} has another one "
        f"({index.tokenizer_kind}, {index.vocab_size:,} ids, {index.tokenizer_fingerprint}), whose "
        "ids mean other text.\n"
        f"To prepare the text with that run's tokenizer, type {text}"
        f"{to_type(tokenizer_path(run))}\n"
        "To train on that run's data, type data=prepared data.files=null data.hub=null "
        "data.sources=null " + override("data.dir", saved["folder"])
    )


def tokenizer_of(run: Path) -> Tokenizer:
    """The tokenizer of a run: the copy in its folder.

    Raises:
        ValueError: the copy is gone, damaged or another one.
    """
    saved = _record(run)
    files = FILES[_kind(saved)]
    path = run / files[0]
    with contextlib.suppress(ValueError):  # gone or damaged
        tokenizer = Tokenizer.load(path)
        if tokenizer.fingerprint == saved["tokenizer_fingerprint"]:
            return tokenizer
    originals = [str(Path(saved["folder"]) / name) for name in files]
    copy = str(path if len(files) == 1 else run)
    raise ValueError(
        f"{path} is missing or not the {_kind(saved)} tokenizer that the run was trained with. "
        f"Copy it again: {shlex.join(['cp', *originals, copy])}"
    )


def prepare_command(config: Mapping[str, Any]) -> str:
    """The command that prepares the data of a run: what differs from the defaults of conf/."""
    overrides = []
    for section, default in _DEFAULTS.items():
        defaults = yaml.safe_load((CONF / section / f"{default}.yaml").read_text(encoding="utf-8"))
        overrides += [
            override(f"{section}.{key}", value)
            for key, value in config[section].items()
            if value != defaults[key]
        ]
    return " ".join(["python -m data.prepare", *overrides])


def _described(sets: Sets) -> dict[str, Any]:
    """What the record says of these data sets."""
    sources = {
        name: {
            "folder": str(prepared.folder),
            "fingerprint": prepared.index.fingerprint,
            "documents": prepared.index.train.documents,
            "tokens": prepared.index.train.tokens,
        }
        for name, prepared in sets.items()
    }
    contents = [f"{name}={source['fingerprint']}" for name, source in sources.items()]
    one = first(sets).index
    mixed = hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]
    return {
        "folder": str(first(sets).folder),
        "fingerprint": one.fingerprint if "" in sets else mixed,
        "tokenizer_kind": one.tokenizer_kind,
        "tokenizer_fingerprint": one.tokenizer_fingerprint,
        "sources": sources,
    }


def _copy_tokenizer(prepared: Prepared, run: Path) -> None:
    """Puts the tokenizer of a data set into the run's folder, in place of one that was there."""
    own = FILES[prepared.index.tokenizer_kind]
    for name in {name for files in FILES.values() for name in files} - set(own):
        (run / name).unlink(missing_ok=True)
    for name in own:
        shutil.copyfile(prepared.folder / name, run / name)


def _kind(record: Mapping[str, Any]) -> str:
    """Of the tokenizer; early records know one kind."""
    return record.get("tokenizer_kind", "sentencepiece")


def _sources(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sources of a record; early ones know one data set."""
    alone = {key: record[key] for key in ("folder", "fingerprint")}
    return record.get("sources", {"": alone})


def _differences(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """What differs in the contents of two records, a line each."""
    lines = []
    if saved["tokenizer_fingerprint"] != given["tokenizer_fingerprint"]:
        named = [f"{_kind(one)} {one['tokenizer_fingerprint']}" for one in (saved, given)]
        lines.append(f"tokenizer: saved {named[0]}, given {named[1]}")
    before, now = _sources(saved), _sources(given)
    for name in [*before, *(name for name in now if name not in before)]:
        old, new = before.get(name), now.get(name)
        if old is None or new is None or old["fingerprint"] != new["fingerprint"]:
            what = f"source {name}" if name else "data set"
            lines.append(f"{what}: saved {_contents(old)}, given {_contents(new)}")
    return lines


def _contents(source: Mapping[str, Any] | None) -> str:
    if source is None:
        return "(none)"
    size = ""
    if "tokens" in source:
        size = f", {source['tokens']:,} training tokens in {source['documents']:,} documents"
    return f"{source['folder']} (contents {source['fingerprint']}{size})"


def _record(run: Path) -> dict[str, Any]:
    """What `bind` wrote."""
    keys = ["folder", "fingerprint", "tokenizer_fingerprint"]
    way_out = "restore it, or remove what is left: train.py with the run's settings writes it anew"
    return read_record(run / RECORD, keys, way_out)


def _way_out(name: str, config: Mapping[str, Any]) -> str:
    given = config["data"]["dir"]
    sources = config["data"].get("sources")
    if sources is not None:
        path = sources[name]["path"] if name in sources else "another folder"
        return f"Put it back: the run was given data.sources.{name}.path={path}"
    if given is not None:
        return f"Put it back: the run was given that folder, data.dir={given}"
    return "Prepare the original text again, then repeat this command:\n  " + prepare_command(
        config
    )


def _same_contents(root: Path, fingerprint: str) -> Path | None:
    """A prepared folder in `root` by its contents: its name changes with the times of the files."""
    for path in sorted(root.glob(f"*/{INDEX_FILE}")):
        if json.loads(path.read_bytes()).get("fingerprint") == fingerprint:
            return path.parent
    return None
