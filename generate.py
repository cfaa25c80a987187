"""Continues a text with a trained model: python generate.py run=quickstart prompt="def "

The text streams to the terminal as it is made. Decoding carries the recurrent states and KV cache,
so its memory does not grow for linear mixers and windows.
"""

from conf.cli import hydra_main
from conf.schema import GenerateSettings


@hydra_main("generate", GenerateSettings, free_text=("prompt",))
def main(settings: GenerateSettings) -> None:
    import torch

    from data.tokenizer import Tokenizer
    from model.sampling import generate
    from model.training.device import pick_device
    from model.training.load import find_checkpoint, load_model

    device = pick_device(settings.device)
    folder, path = find_checkpoint(settings.root, settings.run, settings.checkpoint)
    tokenizer = Tokenizer.load(folder.path / "tokenizer.model")
    model, _ = load_model(path, device)

    prompt = [tokenizer.bos_id, *tokenizer.encode(settings.prompt)]
    tokens = generate(
        model,
        torch.tensor([prompt], device=device),
        settings.max_new_tokens,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        generator=torch.Generator(device).manual_seed(settings.seed),
    )
    print(settings.prompt, end="", flush=True)
    stream = tokenizer.stream()
    for token in tokens:
        print(stream.push(int(token)), end="", flush=True)
    print(stream.flush())


if __name__ == "__main__":
    main()
