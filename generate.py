"""Continues a text with a trained model: python generate.py run=quickstart prompt="def "

The text streams to the terminal as it is made. Decoding carries the recurrent states and the KV
cache, so its memory does not grow for linear mixers and windows.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from conf.cli import hydra_main
from conf.schema import GenerateSettings

if TYPE_CHECKING:
    from data.tokenizer import Tokenizer
    from model.network import LanguageModel


@hydra_main("generate", GenerateSettings, free_text=("prompt",), only_prints=True)
def main(settings: GenerateSettings) -> None:
    check_prompt(settings.prompt)

    from data.binding import tokenizer_of
    from model.training.device import pick_device
    from model.training.load import find_checkpoint, load_model

    device = pick_device(settings.device)
    folder, path = find_checkpoint(settings.root, settings.run, settings.checkpoint)
    tokenizer = tokenizer_of(folder.path)
    model, _ = load_model(path, device)
    pieces = continuation(
        model,
        tokenizer,
        settings.prompt,
        settings.max_new_tokens,
        settings.seed,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
    )
    print(settings.prompt, end="", flush=True)
    for text in pieces:
        print(text, end="", flush=True)
    print()


def check_prompt(prompt: str) -> None:
    """Refuses a prompt that was typed as bytes which are not UTF-8, before anything is printed.

    Python hands such bytes of the command line on as lone surrogates, U+DC80 to U+DCFF.

    Raises:
        ValueError: naming the byte and its place.
    """
    typed = prompt.encode("utf-8", errors="surrogateescape")
    try:
        typed.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"prompt: byte 0x{typed[error.start]:02x} at position {error.start} is not UTF-8. "
            "Convert the text to UTF-8 (iconv -f latin1 -t utf-8)"
        ) from None


def continuation(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    prompt: str,
    max_new_tokens: int,
    seed: int,
    **options,
) -> Iterator[str]:
    """The text that follows `prompt`, piece by piece, never half a character.

    Args:
        prompt: any text; the document starts with it.
        options: temperature, top_k, top_p, see `model.sampling`.

    Raises:
        ValueError: at once: that is more tokens than a mixer allows.
    """
    ids = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    model.check_length(len(ids) + max_new_tokens - 1, "prompt with max_new_tokens")
    return _pieces(model, tokenizer, ids, max_new_tokens, seed, **options)


def _pieces(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    ids: list[int],
    max_new_tokens: int,
    seed: int,
    **options,
) -> Iterator[str]:
    import torch

    from model.sampling import generate

    device = model.embedding.weight.device
    stream = tokenizer.stream()
    for token in generate(
        model,
        torch.tensor([ids], device=device),
        max_new_tokens,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        generator=torch.Generator(device).manual_seed(seed),
        **options,
    ):
        yield stream.push(int(token))
    yield stream.flush()


if __name__ == "__main__":
    main()
