"""Reading the points in a W&B transaction log (`run-<id>.wandb`), read-only.

The file is a LevelDB log (github.com/google/leveldb, doc/log_format.md) of protocol buffers behind
a header of 7 bytes: blocks of 32 KiB, in them records of (crc32, length, type, data), type 1 being
a whole record, 2, 3 and 4 its first, middle and last part. A killed process leaves the file cut off
somewhere; what is complete before that is returned.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_FILE_HEADER = 7
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def history(path: Path) -> Iterator[dict[str, Any]]:
    """The points that were logged, in order, each with all its values."""
    from wandb.proto import wandb_internal_pb2

    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            yield {
                item.key or ".".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }


def records(content: bytes) -> Iterator[bytes]:
    """The serialized records of a transaction log, up to the first that is not complete."""
    position = _FILE_HEADER
    parts: list[bytes] = []
    while True:
        left_in_block = _BLOCK - position % _BLOCK
        if left_in_block < _HEADER.size:
            position += left_in_block  # padding
        if position + _HEADER.size > len(content):
            return
        checksum, length, kind = _HEADER.unpack_from(content, position)
        position += _HEADER.size
        data = content[position : position + length]
        position += length
        if len(data) < length or zlib.crc32(bytes([kind]) + data) != checksum:
            return
        if kind in (_WHOLE, _FIRST):
            parts = []
        parts.append(data)
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
