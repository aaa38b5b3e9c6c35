"""Checkpoints with random weights, and what transformers computes with them.

    python3 make.py --out DIR [--big] [--only NAMES] [--types TYPES]

Each model gets a folder with config.json, model.safetensors and expected.json:
prompts, the logits behind the last token of each, and greedy continuations, all
computed in fp32 from the weights as they are stored.
"""
import argparse
import json
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM


# The spread of the weights of bf16 models is transformers' default: larger ones
# amplify the rounding of the storage type itself from layer to layer.
BF16_RANGE = 0.02


def tiny(**k):
    return dict(vocab_size=512, hidden_size=512, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=8,
                num_key_value_heads=4, head_dim=64, max_position_embeddings=2048, initializer_range=0.06, **k)


MODELS = {
    "qwen3-tiny": (Qwen3Config, Qwen3ForCausalLM, tiny(tie_word_embeddings=True, rms_norm_eps=1e-6), 128),
    "llama-tiny": (LlamaConfig, LlamaForCausalLM, tiny(
        tie_word_embeddings=False, rms_norm_eps=1e-5, attention_bias=False,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=256)), 128),
    "qwen3-0.6b": (Qwen3Config, Qwen3ForCausalLM, dict(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=4096, tie_word_embeddings=True, rms_norm_eps=1e-6,
        initializer_range=0.04, rope_parameters=dict(rope_type="default", rope_theta=1000000.0)), 128),
    "llama-1b": (LlamaConfig, LlamaForCausalLM, dict(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=4096, tie_word_embeddings=True, rms_norm_eps=1e-5,
        attention_bias=False, initializer_range=0.03,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=1024)), 128),
}
BIG = {"qwen3-0.6b", "llama-1b"}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@torch.inference_mode()
def make(out, name, kind, device):
    dtype = TYPES[kind]
    config_class, model_class, values, steps = MODELS[name]
    torch.manual_seed(1)
    if dtype == torch.bfloat16:
        values = dict(values, initializer_range=BF16_RANGE)
    model = model_class(config_class(**values)).to(dtype)
    folder = os.path.join(out, f"{name}-{kind}")
    model.save_pretrained(folder)
    native = model_class.from_pretrained(folder, dtype=dtype).to(device).eval()
    # Read again: converting the model itself would leave the rotary frequencies, which
    # are no weights, as rounded as the storage type.
    model = model_class.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    frequencies = model.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32 and (frequencies != frequencies.bfloat16().float()).any(), "rounded rotary frequencies"
    g = torch.Generator().manual_seed(2)
    cases = []
    for n in (1, 17, 130, 400):
        prompt = torch.randint(0, values["vocab_size"], (1, n), generator=g)
        ids = prompt.to(device)
        r = model(ids, use_cache=True)
        logits, tokens, cache = r.logits[0, -1], [], r.past_key_values
        first = logits
        for _ in range(steps):
            t = int(logits.argmax())
            tokens.append(t)
            r = model(torch.tensor([[t]], device=device), past_key_values=cache, use_cache=True)
            logits, cache = r.logits[0, -1], r.past_key_values
        own = native(ids).logits[0, -1].float()
        own = float((own - first).norm() / first.norm())
        cases.append(dict(own=own, prompt=prompt[0].tolist(), logits=first.tolist(), tokens=tokens))
    with open(os.path.join(folder, "expected.json"), "w") as f:
        json.dump(cases, f)
    print(folder, 'transformers in the storage type is', max(c['own'] for c in cases), 'from fp32', flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--big", action="store_true", help="the shapes of Qwen3-0.6B and of a Llama of 1.2 billion parameters too")
    p.add_argument("--only", help="models, separated by commas")
    p.add_argument("--types", default=",".join(TYPES), help="storage types, separated by commas (%(default)s)")
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = a.only.split(",") if a.only else [n for n in MODELS if a.big or n not in BIG]
    for name in names:
        for kind in a.types.split(","):
            make(a.out, name, kind, device)


if __name__ == "__main__":
    main()
