"""Makes tests/data/golden_gemma.json: what transformers writes with Gemma 3 270M, greedily.

    pip install '.[bench]' accelerate && python tests/make_gemma.py [--also PROMPTS.jsonl ...]

The file is read by the gguf package alone: its reader, its dequantisation, its table of names. The
numbers go into transformers' Gemma3ForCausalLM (torch, CPU, float32, eager attention), whose
configuration is written out below as Google published it; so nothing of this package has a part in
the result. The ids of the prompts come from the plain loop of reference_spm.py. transformers' own
reader of GGUF files is not used: it has no key for the rotary base of local layers.

`--also` decodes further prompts, from JSONL files with a `prompt` or `turns`, with both programs,
and says whether they write the same text; nothing of these is stored.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from reference_spm import PlainSentencePiece
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from lookahead_jax import LookaheadConfig, generate
from lookahead_jax.models import demo, load_model
from lookahead_jax.models.gguf_header import read_gguf_header

MODEL = "gemma3-270m"
TARGET = Path(__file__).parent / "data" / "golden_gemma.json"
MAX_NEW_TOKENS = 48
BOS, STOP_TOKENS = 2, (1, 106)
TOP = 12

CONFIG = {
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "tie_word_embeddings": True,
}
"""Of google/gemma-3-270m."""

STORES = "\n".join(
    f"{day} May: {count} boxes of {fruit} for the shop in {town}, paid by {payer}."
    for day, count, fruit, town, payer in zip(
        range(1, 32),
        (12, 7, 31, 18, 5, 44, 9, 27) * 4,
        ("apples", "pears", "plums", "figs", "limes") * 7,
        ("Norby", "Elmstead", "Tarvik", "Sutton", "Aldea", "Karlin", "Ostra") * 5,
        ("card", "cash", "cheque") * 11,
        strict=False,
    )
)

PROMPTS = {
    "code": "def is_prime(n: int) -> bool:\n"
    '    """Whether n has no divisors but 1 and itself."""\n    if n < 2:\n        return False\n',
    "facts": "Photosynthesis is the process by which",
    "list": "Ten words that rhyme with 'light':\n\n1. night\n2. bright\n3.",
    "french": "Recette de la soupe à l'oignon.\n\nIngrédients :\n- 4 oignons\n- 50 g de beurre\n-",
    "long": f"Deliveries of the month\n\n{STORES}\n\nThe first of June:",
}
"""Plain texts: the model is not a chat model. The long one is longer than the window of 512."""


def read_model(path: Path) -> Gemma3ForCausalLM:
    model = Gemma3ForCausalLM._from_config(Gemma3TextConfig(**CONFIG), attn_implementation="eager")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, CONFIG["num_hidden_layers"])
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    left = set(stored)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            base, _, suffix = name.rpartition(".")
            tensor = stored[f"{names.get_name(base)}.{suffix}"]
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            if name.endswith("norm.weight"):
                values = values - 1  # the converter adds what transformers adds when it runs
            weight.copy_(torch.from_numpy(values).reshape(weight.shape))
            left.remove(tensor.name)
    assert not left, left
    return model.eval()


def decode(model, ids: list[int]) -> tuple[list[int], torch.Tensor]:
    """The greedy text, and the logits of each of its steps."""
    tokens = torch.tensor([ids])
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        num_beams=1,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=list(STOP_TOKENS),
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.sequences[0, len(ids) :].tolist(), torch.stack(output.logits)[:, 0]


def smallest_gap(rows: torch.Tensor) -> float:
    best = rows.topk(2).values
    return (best[:, 0] - best[:, 1]).min().item()


def golden_prompt(model, plain: PlainSentencePiece, name: str, text: str) -> dict:
    ids = [BOS, *plain.encode(text)]
    tokens, logits = decode(model, ids)
    gap = smallest_gap(logits)
    print(f"{name}: {len(ids)} + {len(tokens)} tokens, gap {gap:.5f}")
    top = logits[0].topk(TOP)
    others = torch.arange(len(ids), CONFIG["vocab_size"], 26213)
    return {
        "name": name,
        "text": text,
        "prompt_tokens": ids,
        "tokens": tokens,
        "smallest_gap": round(gap, 5),
        "logit_ids": top.indices.tolist() + others.tolist(),
        "logits": [round(x, 4) for x in top.values.tolist() + logits[0, others].tolist()],
    }


def compare(model, plain: PlainSentencePiece, files: list[Path]) -> None:
    """Decodes prompts of files with both programs."""
    lm = load_model(MODEL)
    for file in files:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        texts = [row["prompt"] if "prompt" in row else row["turns"][0] for row in rows]
        texts = [text for text in texts if len(text) < 1500][:: max(1, len(texts) // 12)]
        ids = [[BOS, *plain.encode(text)] for text in texts]
        assert ids == [lm.tokenizer.encode(text) for text in texts]
        results = generate(
            lm,
            ids,
            config=LookaheadConfig(5, 4, 5),
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=len(ids),
        )
        for prompt, result in zip(ids, results, strict=True):
            tokens, logits = decode(model, prompt)
            same = tokens == list(result.tokens)
            print(
                f"{file.name}: {len(prompt)} tokens, same text: {same}, "
                f"{result.stats.tokens_per_round:.2f} tokens per call, "
                f"gap {smallest_gap(logits):.5f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--also", nargs="*", type=Path, default=[], metavar="PROMPTS.jsonl")
    also = parser.parse_args().also
    transformers.utils.logging.disable_progress_bar()
    file = demo.fetch(demo.NAMED_MODELS[MODEL])
    plain = PlainSentencePiece(read_gguf_header(file).metadata)
    model = read_model(file)
    if also:
        compare(model, plain, also)
        return
    prompts = [golden_prompt(model, plain, name, text) for name, text in PROMPTS.items()]
    packages = ("torch", "transformers", "gguf", "numpy")
    golden = {
        "format": "golden_gemma/1",
        "model": MODEL,
        "file_sha256": demo.NAMED_MODELS[MODEL].sha256,
        "made_by": "tests/make_gemma.py: transformers' greedy generate, torch CPU, float32",
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in packages},
        "max_new_tokens": MAX_NEW_TOKENS,
        "stop_tokens": list(STOP_TOKENS),
    }
    head = json.dumps(golden, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(prompt, ensure_ascii=False) for prompt in prompts)
    TARGET.write_text(f'{head},\n "prompts": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
