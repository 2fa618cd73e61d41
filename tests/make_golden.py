"""Makes tests/data/golden_smollm2.json: what transformers writes with the demo model, greedily.

    pip install '.[bench]' accelerate && python tests/make_golden.py

An independent program (transformers' `generate` on torch, CPU, float32) reads the same GGUF file,
whose weights it dequantises itself, and decodes every prompt greedily, one token a call, with its
own cache. The prompts' ids come from this package's tokenizer and must equal transformers'. Nothing
is stored unless the two models agree on a whole forward pass, too. Torch (and accelerate, which
transformers wants for GGUF files) is needed here only.
"""

from __future__ import annotations

import json
import platform
import textwrap
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import torch
import transformers

from lookahead_jax.kv_cache import init_cache
from lookahead_jax.models import demo, load_model

MODEL = "smollm2-135m"
DATA = Path(__file__).parent / "data"
TARGET = DATA / "golden_smollm2.json"
MAX_NEW_TOKENS = 128
LARGEST_DIFFERENCE = 2e-3
"""Of two float32 logits of the same row; logits are around 20 in size."""


@dataclass(frozen=True)
class Prompt:
    name: str
    text: str
    chat: bool = True
    """Whether the text becomes a user's message by the model's chat template."""


REPORT = """
    Summarise the following report in three sentences.

    The harbour town of Lindmouth rebuilt its sea wall last year, after two winters in which storms
    had flooded the market square. The new wall is four hundred metres long and stands one metre
    higher than the old one, which the town had put up in 1908 with stone from a quarry that has
    since become a lake. Engineers first proposed a wall of plain concrete, because it would have
    been cheaper and quicker to build. The people who live along the water did not like the plan,
    since they would have lost their view of the boats, and they asked for something better. In the
    end the council chose a design with a low wall and a row of steel gates. In fair weather the
    gates lie flat under the pavement, and anyone can walk across them without noticing. When the
    tide office gives a warning, two workers need twenty minutes to raise all of them by hand, or
    four minutes with the electric motors, which also run on batteries if the power fails.

    The wall was paid for in three parts. Half of the money came from the national fund for coasts,
    a third from the county, and the rest from the town itself, which sold an old warehouse and
    raised the fee for mooring a boat by a tenth. The work took fourteen months, two more than
    planned, because divers found the remains of a wooden pier, and the museum wanted time to
    measure it and to lift the best pieces. They are on show in the library now. In November the
    gates were raised in earnest for the first time. The water rose to a hand's width below the top,
    and the square stayed dry. Some shops still keep sandbags behind the door, out of habit.
"""

PROMPTS = (
    Prompt("question", "Why do leaves change colour in autumn?"),
    Prompt(
        "python", "Write a Python class for a bank account: deposit, withdraw, transfer, tests."
    ),
    Prompt(
        "sql", "Show the SQL that creates tables for books, readers and loans, and explain them."
    ),
    Prompt("arithmetic", "A baker sells 24 rolls a day at 3 coins each. What does he earn a week?"),
    Prompt("list", "List ten animals that live in the sea, with one fact about each."),
    Prompt("story", "Tell me a short story about a lighthouse keeper and a lost whale."),
    Prompt("translation", "Translate into French: 'The train to Lyon leaves at nine o'clock.'"),
    Prompt("french", "Expliquez en quelques phrases comment on fait du pain à la maison."),
    Prompt("german", "Erzähle mir eine lange Geschichte über einen Drachen, der im Wald wohnt."),
    Prompt(
        "raw_encyclopedia",
        "The Amazon rainforest is the largest tropical forest in the world. It covers most of the "
        "Amazon basin of South America, and it is home to more "
        "kinds of plants and animals than any other place, such as",
        chat=False,
    ),
    Prompt(
        "raw_code",
        "def fibonacci(n):\n    if n < 2:\n        return n\n"
        "    return fibonacci(n - 1) + fibonacci(n - 2)\n\n\ndef factorial(n):\n",
        chat=False,
    ),
    Prompt(
        "extraction",
        "Give the name, the date, the place and the price of each event as a JSON list.\n\n"
        "On 4 May the choir sings in the town hall, tickets are 12 euros. The book fair opens in "
        "the old station on 9 June and costs nothing.",
    ),
    Prompt(
        "instructions",
        "Rewrite this note as a polite email to a colleague, with a subject line and a greeting:\n"
        "meeting moved to thursday 3pm, room 204 because of the painters, bring the budget, "
        "tell the others",
    ),
    Prompt(
        "long_report",
        "\n\n".join(
            " ".join(part.split()) for part in textwrap.dedent(REPORT).strip().split("\n\n")
        ),
    ),
)


def encode(tokenizer, prompt: Prompt) -> list[int]:
    """Ids by transformers' own reading of the file."""
    if not prompt.chat:
        return tokenizer(prompt.text)["input_ids"]
    messages = [{"role": "user", "content": prompt.text}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return ids["input_ids"]


def decode(model, ids: list[int], stop_tokens: tuple[int, ...]) -> tuple[list[int], float]:
    """Output ids, and the smallest difference of the two best logits on the way."""
    tokens = torch.tensor([ids])
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        num_beams=1,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=list(stop_tokens),
        pad_token_id=stop_tokens[0],
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(output.logits)[:, 0].topk(2).values
    gap = (best[:, 0] - best[:, 1]).min().item()
    return output.sequences[0, len(ids) :].tolist(), gap


def our_logits(lm, ids: list[int]) -> np.ndarray:
    """[P, V] of one causal forward pass of this package's model."""
    rows = jnp.arange(len(ids))[None, :]
    mask = rows[:, :, None] >= rows[:, None, :]
    cache = init_cache(lm.cache_spec, 1, 8)
    return np.asarray(lm.forward(lm.params, jnp.array([ids]), rows, mask, cache, rows)[0][0])


def compare_models(lm, model) -> dict[str, float]:
    """Largest differences between the two models' logits, and from a recorded forward pass."""
    recorded = json.loads((DATA / "traces" / "forward_check.json").read_text())["smollm2"]
    ids = recorded["ids"]
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].numpy()
    ours = our_logits(lm, ids)
    assert np.array_equal(ours.argmax(-1), theirs.argmax(-1))
    assert theirs.argmax(-1).tolist() == recorded["argmax"]
    top = np.take_along_axis(theirs, np.array(recorded["top8_ids"]), axis=-1)
    differences = {
        "from_lookahead_jax": float(np.abs(theirs - ours).max()),
        "from_forward_check": float(np.abs(top - np.array(recorded["top8_logits"])).max()),
    }
    assert max(differences.values()) < LARGEST_DIFFERENCE, differences
    return differences


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    lm = load_model(MODEL)
    file = demo.fetch(demo.NAMED_MODELS[MODEL])
    source = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, dtype=torch.float32, **source
    ).eval()
    differences = compare_models(lm, model)

    prompts = []
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt.text}]
        encoder = lm.tokenizer
        ids = encoder.encode_chat(messages) if prompt.chat else encoder.encode(prompt.text)
        assert ids == encode(tokenizer, prompt), prompt.name
        tokens, gap = decode(model, ids, lm.stop_tokens)
        print(f"{prompt.name}: {len(ids)} + {len(tokens)} tokens, gap {gap:.5f}")
        print(textwrap.indent(tokenizer.decode(tokens), "    "))
        prompts.append(
            {
                "name": prompt.name,
                "text": prompt.text,
                "chat": prompt.chat,
                "prompt_tokens": ids,
                "tokens": tokens,
                "smallest_gap": round(gap, 5),
            }
        )
    packages = ("torch", "transformers", "tokenizers", "gguf", "numpy")
    golden = {
        "format": "golden/1",
        "model": MODEL,
        "file": file.name,
        "file_sha256": demo.NAMED_MODELS[MODEL].sha256,
        "made_by": "tests/make_golden.py: transformers' greedy generate, torch CPU, float32",
        "attention": model.config._attn_implementation,
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in packages},
        "largest_logit_difference": differences,
        "max_new_tokens": MAX_NEW_TOKENS,
        "stop_tokens": list(lm.stop_tokens),
    }
    # One prompt a line: differences of the file stay readable.
    head = json.dumps(golden, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(prompt, ensure_ascii=False) for prompt in prompts)
    TARGET.write_text(f'{head},\n "prompts": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    full = sum(len(prompt["tokens"]) == MAX_NEW_TOKENS for prompt in prompts)
    print(f"{TARGET.name}: {len(prompts)} prompts, {full} of them with {MAX_NEW_TOKENS} tokens")


if __name__ == "__main__":
    main()
