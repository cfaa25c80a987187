"""Settings of the data and the tokenizer. Every default lives in conf/data and conf/tokenizer."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from conf.settings import Count, CountOrZero, RowLength, Settings, Text, Weight


class TokenizerConfig(Settings):
    """How text becomes token ids. See `data.tokenizer`."""

    before: ClassVar[dict[str, Any]] = {"bos": None, "eos": None, "pad": None}

    kind: Literal["sentencepiece", "hf_json"] = Field(
        description="sentencepiece, or a Hugging Face tokenizer.json that is there already."
    )
    path: Text | None = Field(
        description="An existing sentencepiece .model or tokenizer.json to use, or a folder that "
        "holds one; the settings below down to character_coverage then have no effect. null: train "
        "a sentencepiece model on the training split."
    )
    vocab_size: Count | None = Field(
        ge=4 + 256 + 1,
        le=2**31 - 1,
        description="Number of token ids, 4 special and 256 byte ids in it; sentencepiece counts "
        "them in 32 bits.",
    )
    model_type: Literal["bpe", "unigram"] | None = Field(
        description="How the vocabulary is trained."
    )
    sample_bytes: Count | None = Field(
        description="Bytes of text the vocabulary is trained on. A larger corpus is sampled in "
        "blocks of about 4 kB spread evenly over all its training documents.",
    )
    character_coverage: float | None = Field(
        ge=0.98,
        le=1,
        description="Share of the sample's characters that get a piece of their own; "
        "the rarest ones are written as bytes. sentencepiece takes 0.98 to 1.",
    )
    bos: Text | None = Field(
        description="Of a tokenizer.json: the token that begins a document. null: as the files "
        "beside it say, or else eos."
    )
    eos: Text | None = Field(
        description="Of a tokenizer.json: the token that ends a document. null: as the files "
        "beside it say."
    )
    pad: Text | None = Field(
        description="Of a tokenizer.json: the token that fills rows. null: as the files beside it "
        "say, or else eos."
    )

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        trained = ("vocab_size", "model_type", "sample_bytes", "character_coverage")
        roles = ("bos", "eos", "pad")
        if self.kind == "hf_json":
            if self.path is None:
                raise ValueError(
                    "tokenizer.kind=hf_json needs a file: tokenizer.path=FOLDER/tokenizer.json. To "
                    "train a tokenizer, type tokenizer=sentencepiece_32k"
                )
            given = [name for name in trained if getattr(self, name) is not None]
            if given:
                raise ValueError(
                    f"tokenizer.{given[0]}={getattr(self, given[0])}: that is trained already in "
                    f"{self.path}. Leave it out, or type tokenizer.{given[0]}=null"
                )
            return self
        given = [name for name in roles if getattr(self, name) is not None]
        if given:
            raise ValueError(
                f"tokenizer.{given[0]}={getattr(self, given[0])}: a sentencepiece model has its "
                f"own; type tokenizer.{given[0]}=null, or tokenizer=hf_json "
                "tokenizer.path=FOLDER/tokenizer.json"
            )
        missing = [name for name in trained if getattr(self, name) is None]
        if missing:
            raise ValueError(
                f"tokenizer.{missing[0]}=null: a sentencepiece model needs a value. Type one, or a "
                "choice with values such as tokenizer=sentencepiece_2k"
            )
        return self


def _source_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ValueError(
            "names of sources begin with a letter and go on with letters, digits, _ and -"
        )
    return name


SourceName = Annotated[str, AfterValidator(_source_name)]
"""Part of the names of metrics."""


class SourceConfig(Settings):
    """A prepared data set of a mixture; what is left out is null."""

    path: Text = Field(description="A folder that `python -m data.prepare` wrote.")
    weight: Weight | None = Field(
        None,
        description="Its share of the run's tokens, relative to the weights of the others. null "
        "for all: by the number of tokens they have.",
    )


class LengthConfig(Settings):
    """Emphasis on documents by their length. See `data.lengths`."""

    bounds: list[Count] = Field(
        max_length=255,
        min_length=1,
        description="Tokens of a document at which the next bucket begins.",
    )
    weights: list[Weight] = Field(
        description="One more than bounds: how often a bucket's tokens are read, relative to the "
        "others. All 1: as without buckets."
    )

    @model_validator(mode="after")
    def _buckets(self) -> Self:
        if any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError(
                f"bounds={self.bounds} do not increase; give each once, smallest first"
            )
        if len(self.weights) != len(self.bounds) + 1:
            raise ValueError(
                f"{len(self.bounds)} bounds make {len(self.bounds) + 1} buckets, but weights="
                f"{self.weights} are {len(self.weights)}: give one for each, shortest documents "
                "first"
            )
        check_weights("weights", self.weights)
        return self


class DataConfig(Settings):
    """What is read, where it is prepared and how it is served. See `data.prepare`, `data.module`.

    Without `files`, `hub`, `dir` and `sources` the source is the running Python's standard library.
    """

    before: ClassVar[dict[str, Any]] = {
        "skip_bad_records": False,
        "drop_duplicates": False,
        "processes": None,
        "verify": False,
        "sources": None,
        "by_length": None,
        "force": False,
    }

    files: str | list[str] | None = Field(
        description="Glob, or list of globs: .jsonl, .jsonl.gz, .parquet and .arrow hold one "
        "document per record, any other file is text and one document."
    )
    hub: Text | None = Field(
        description="Hugging Face data set: a hub name, or a local folder that `datasets` can load."
    )
    hub_config: Text | None = Field(description="Configuration (subset) of the hub data set.")
    hub_split: Text = Field(description="Split of the hub data set that is read.")
    text_column: Text = Field(
        description="Column that holds the text, in files with records and hub."
    )
    root: Text = Field(description="Folder under which prepared data sets are written.")
    dir: Text | None = Field(
        description="A prepared data set to use as it is, with the tokenizer it was prepared with. "
        "If files or hub is given too, it must be what the set was prepared from."
    )
    skip_bad_records: bool = Field(
        description="Leave out records without text (no JSON, no such column, no text in it, no "
        "Unicode text) and files that are not UTF-8, counted by reason, instead of ending with the "
        "first one."
    )
    drop_duplicates: bool = Field(
        description="Leave out documents whose text is that of an earlier one, byte for byte. They "
        "are counted in any case."
    )
    processes: Count | None = Field(
        le=1024,
        description="Processes that encode. null: as many as there are cores. The result does not "
        "depend on it.",
    )
    verify: bool = Field(
        description="Read every byte of the data set before it is used, and refuse it if one "
        "changed. Sizes are checked in any case."
    )
    sources: dict[SourceName, SourceConfig] | None = Field(
        description="Several prepared data sets, mixed by weight: {name: {path, weight}, ...}."
    )
    by_length: LengthConfig | None = Field(
        description="Emphasis on documents by their length; null: none."
    )
    seq_len: RowLength = Field(
        description="Tokens per row: of validation always, of training unless a stage says other."
    )
    validation_bytes: Count = Field(
        description="Validation text in bytes, by whole documents: at least this much."
    )
    seed: CountOrZero = Field(description="Seed of the validation split and of the training order.")
    workers: CountOrZero = Field(
        le=256, description="Loader processes per rank. The order never depends on it."
    )
    force: bool = Field(
        description="Continue a run although its data, tokenizer, seed or mixture changed."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.files is not None and self.hub is not None:
            raise ValueError(
                f"data.files={self.files} and data.hub={self.hub} are both given; one source is "
                "allowed. Type data.files=null or data.hub=null."
            )
        if self.files is not None and not self.patterns:
            raise ValueError(
                "data.files is an empty list. Type data.files=null or data.files='a/*.txt'."
            )
        if self.sources is not None:
            self._check_sources(self.sources)
        return self

    def _check_sources(self, sources: dict[str, SourceConfig]) -> None:
        for key in ("files", "hub", "dir"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"data.{key}={getattr(self, key)} and data.sources are both given; one is "
                    f"allowed. Type data.{key}=null or data.sources=null."
                )
        if not sources:
            raise ValueError(
                "data.sources is empty. Type data.sources=null, or a source such as "
                "data.sources.web.path=prepared/web-0123456789"
            )
        weights = {name: source.weight for name, source in sources.items()}
        given = {name: weight for name, weight in weights.items() if weight is not None}
        missing = [name for name in weights if name not in given]
        if given and missing:
            raise ValueError(
                f"data.sources: {', '.join(given)} with a weight, {', '.join(missing)} without; "
                f"give all or none, such as data.sources.{missing[0]}.weight=1"
            )
        if given:
            check_weights("data.sources", list(given.values()))

    @property
    def patterns(self) -> list[str]:
        """The globs of `files` as a list (empty without `files`)."""
        if self.files is None:
            return []
        return [self.files] if isinstance(self.files, str) else list(self.files)


class PrepareSettings(Settings):
    """Settings of `python -m data.prepare`."""

    data: DataConfig = Field(description="The source and where it is prepared.")
    tokenizer: TokenizerConfig = Field(description="The tokenizer.")
    shard: Text | None = Field(
        description="One part of the work, such as 0/64, for tasks that share it; see `data.parts`."
    )
    merge: bool = Field(description="Make the data set of all parts that were prepared.")

    @field_validator("shard", mode="before")
    @classmethod
    def _part_of_parts(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, str):  # shard=3 is a number to Hydra
            raise ValueError(f"{value} is not a part and their number, such as shard=0/64")
        return value

    @model_validator(mode="after")
    def _one_step(self) -> Self:
        if self.shard is not None and self.merge:
            raise ValueError(
                f"shard={self.shard} and merge=true are both given; merging is one task's work "
                "after all parts. Type shard=null or merge=false."
            )
        return self

    @model_validator(mode="after")
    def _one_set(self) -> Self:
        if self.data.sources is not None:
            raise ValueError(
                "data.sources names data sets that are prepared already; prepare each by itself: "
                "data.sources=null data.files='mytext/*.jsonl'"
            )
        return self


def check_weights(name: str, weights: Sequence[float]) -> None:
    """Raises ValueError if all weights are 0."""
    if not any(weights):
        raise ValueError(f"{name}: every weight is 0, so that nothing would be read; raise one")
