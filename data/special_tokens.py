"""Which tokens of a tokenizer.json begin, end and fill: bos, eos and pad.

The file itself does not say. Settings do (`tokenizer.bos` ...), or else the files that lie beside
it, tokenizer_config.json before special_tokens_map.json. A prepared folder has the latter, written
by this code. What is not named anywhere is the eos token: documents are told apart by their stored
borders, so that bos, eos and pad may share one id.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.json_format import Section, pieces_of

ROLES = ("bos", "eos", "pad")
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json")


def find_roles(
    folder: Path, contents: Section, given: Mapping[str, str | None], name: str
) -> tuple[dict[str, str], list[str]]:
    """The token of each role, and notes for the user.

    Raises ValueError if there is no eos token, or one that is not in the file.
    """
    known = pieces_of(contents).keys() | {token["content"] for token in added_tokens(contents)}
    roles: dict[str, str] = {}
    for source, tokens in [("settings", given), *_beside(folder)]:
        for role in ROLES:
            token = tokens.get(role)
            if token is None or role in roles:
                continue
            if token not in known:
                where = f"tokenizer.{role}" if source == "settings" else f"{source}: {role}_token"
                raise ValueError(
                    f"{name} has no token {token!r}, which {where} names. {_hint(contents, role)}"
                )
            roles[role] = token
    if "eos" not in roles:
        raise ValueError(
            f"{name} does not say which token ends a document, and neither do "
            f"{' and '.join(_BESIDE)} beside it. {_hint(contents, 'eos')}"
        )
    missing = [role for role in ROLES if role not in roles]
    notes = []
    if missing:
        notes.append(
            f"The tokenizer names no {' and no '.join(missing)} token: its eos token "
            f"{roles['eos']!r} serves as {' and '.join(missing)}, too."
        )
    return {role: roles.get(role, roles["eos"]) for role in ROLES}, notes


def added_tokens(contents: Section) -> list[Section]:
    """The file's added tokens; special ones are never matched in text."""
    return contents.get("added_tokens") or []


def token_map(roles: Mapping[str, str]) -> bytes:
    """special_tokens_map.json of these roles."""
    return json.dumps({f"{role}_token": roles[role] for role in ROLES}, indent=2).encode() + b"\n"


def _beside(folder: Path) -> list[tuple[str, dict[str, str | None]]]:
    found = []
    for file in _BESIDE:
        path = folder / file
        if path.is_file():
            try:
                values = json.loads(path.read_bytes())
                found.append(
                    (file, {role: _content(values.get(f"{role}_token")) for role in ROLES})
                )
            except (ValueError, AttributeError, KeyError) as error:
                raise ValueError(f"{path} is damaged: {error}") from None
    return found


def _content(value: Any) -> str | None:
    return value["content"] if isinstance(value, dict) else value


def _hint(contents: Section, role: str) -> str:
    from conf.cli import override

    special = [token["content"] for token in added_tokens(contents) if token.get("special")]
    if not special:
        return f"It has no special tokens; name one of its tokens: tokenizer.{role}=TOKEN"
    more = f" and {len(special) - 20} more" if len(special) > 20 else ""
    return (
        f"Its special tokens are {', '.join(special[:20])}{more}. Type, for example, "
        f"{override(f'tokenizer.{role}', special[0])}"
    )
