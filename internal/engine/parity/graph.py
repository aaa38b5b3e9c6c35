"""The decoder of a Qwen3 or Llama shape as plain torch operators: decode steps in
one CUDA graph, and prefill with scaled_dot_product_attention. It is what the
engine's step times are compared with in the same run. Prints CSV lines like
steptime's.

    python3 graph.py --model qwen3-0.6b,llama3-8b --batch 1,8,32,128
"""
import argparse
import statistics
import sys

import torch
import torch.nn.functional as F

SHAPES = {
    "qwen3-0.6b": dict(vocab=151936, hidden=1024, layers=28, heads=16, kv=8, dim=128, ffn=3072, theta=1e6, norm=True, tied=True),
    "llama3-8b": dict(vocab=128256, hidden=4096, layers=32, heads=32, kv=8, dim=128, ffn=14336, theta=5e5, norm=False, tied=False),
}


class Decoder:
    def __init__(self, name, seed=0):
        s = self.s = SHAPES[name]
        g = torch.Generator("cuda").manual_seed(seed)

        def weight(*shape):
            return torch.randn(*shape, generator=g, device="cuda", dtype=torch.bfloat16) / shape[-1] ** 0.5

        ones = lambda n: torch.ones(n, device="cuda", dtype=torch.bfloat16)
        self.embed = weight(s["vocab"], s["hidden"])
        self.head = self.embed if s["tied"] else weight(s["vocab"], s["hidden"])
        q, kv = s["heads"] * s["dim"], s["kv"] * s["dim"]
        self.layers = [
            dict(
                n1=ones(s["hidden"]), n2=ones(s["hidden"]), qn=ones(s["dim"]), kn=ones(s["dim"]),
                qkv=weight(q + 2 * kv, s["hidden"]), o=weight(s["hidden"], q),
                gu=weight(2 * s["ffn"], s["hidden"]), d=weight(s["hidden"], s["ffn"]),
            )
            for _ in range(s["layers"])
        ]
        self.norm = ones(s["hidden"])

    def rms(self, x, w):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    def angles(self, pos):
        d = self.s["dim"]
        f = self.s["theta"] ** (-torch.arange(0, d, 2, device="cuda").float() / d)
        a = pos.float()[..., None] * f
        a = torch.cat([a, a], -1)
        return a.cos().to(torch.bfloat16), a.sin().to(torch.bfloat16)

    @staticmethod
    def rotate(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, ids, pos, attend, last=None):
        """ids, pos: [B,T]; attend(layer, q, k, v) with [B,H,T,D]."""
        s = self.s
        b, t = ids.shape
        h = self.embed[ids]
        cos, sin = self.angles(pos)
        cos, sin = cos[:, None], sin[:, None]
        for i, l in enumerate(self.layers):
            x = self.rms(h, l["n1"]) @ l["qkv"].T
            q, k, v = x.split([s["heads"] * s["dim"], s["kv"] * s["dim"], s["kv"] * s["dim"]], -1)
            q = q.view(b, t, s["heads"], s["dim"])
            k = k.view(b, t, s["kv"], s["dim"])
            v = v.view(b, t, s["kv"], s["dim"]).transpose(1, 2)
            if s["norm"]:
                q, k = self.rms(q, l["qn"]), self.rms(k, l["kn"])
            q = self.rotate(q.transpose(1, 2), cos, sin)
            k = self.rotate(k.transpose(1, 2), cos, sin)
            h = h + attend(i, q, k, v).transpose(1, 2).reshape(b, t, -1) @ l["o"].T
            x = self.rms(h, l["n2"]) @ l["gu"].T
            g, u = x.chunk(2, -1)
            h = h + (F.silu(g) * u) @ l["d"].T
        if last:
            h = h[:, -1:]
        return (self.rms(h, self.norm) @ self.head.T).argmax(-1)


def timed(f, n):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(n):
        f()
    b.record()
    torch.cuda.synchronize()
    return a.elapsed_time(b) / n


@torch.inference_mode()
def decode(m, batch, context):
    s = m.s
    k = [torch.randn(batch, s["kv"], context, s["dim"], device="cuda", dtype=torch.bfloat16) for _ in m.layers]
    v = [torch.randn_like(x) for x in k]
    ids = torch.randint(0, s["vocab"], (batch, 1), device="cuda")
    pos = torch.full((batch, 1), context - 1, device="cuda")

    def attend(i, q, nk, nv):
        k[i][:, :, -1:].copy_(nk)
        v[i][:, :, -1:].copy_(nv)
        return F.scaled_dot_product_attention(q, k[i], v[i], enable_gqa=True)

    def step():
        ids.copy_(m.forward(ids, pos, attend))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        step()
    timed(g.replay, 5)
    return statistics.median(timed(g.replay, 30) for _ in range(3))


@torch.inference_mode()
def prefill(m, n):
    ids = torch.randint(0, m.s["vocab"], (1, n), device="cuda")
    pos = torch.arange(n, device="cuda")[None]
    attend = lambda i, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    f = lambda: m.forward(ids, pos, attend, last=True)
    timed(f, 2)
    return n / statistics.median(timed(f, 3) for _ in range(3))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="qwen3-0.6b")
    p.add_argument("--batch", default="1,8,32,128")
    p.add_argument("--prefill", default="1024,4096,12288")
    p.add_argument("--context", type=int, default=1024)
    a = p.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU: nothing to compare with")
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name in a.model.split(","):
        m = Decoder(name)
        for b in filter(None, a.batch.split(",")):
            print(f"{name},torch-graph,{b},graph,{decode(m, int(b), a.context):.4f},ms", flush=True)
        for n in filter(None, a.prefill.split(",")):
            print(f"{name},torch-prefill,{n},eager,{prefill(m, int(n)):.2f},ktok/s", flush=True)
        del m
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
