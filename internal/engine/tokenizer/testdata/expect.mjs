// Writes expected.json: the ids of texts.json and the texts of ids, by Hugging Face's tokenizers (npm: tokenizers 0.23.2). See make.py.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
const { Tokenizer } = createRequire(process.cwd() + "/")("tokenizers");
const at = (name) => new URL(name, import.meta.url);
const texts = JSON.parse(readFileSync(at("texts.json"), "utf8"));
let seed = 1;
const random = (n) => (seed = (seed * 48271) % 2147483647) % n; // Park and Miller
const out = {};
for (const kind of ["qwen", "llama", "smol"]) {
  const file = readFileSync(at(kind + "/tokenizer.json"), "utf8");
  const t = Tokenizer.fromString(file);
  const { model, added_tokens } = JSON.parse(file);
  const size = Object.keys(model.vocab).length + added_tokens.length;
  const encoded = [];
  for (const text of texts) encoded.push((await t.encode(text, null, { addSpecialTokens: true })).getIds());
  const decoded = [];
  for (let i = 0; i < 150; i++) {
    const ids = Array.from({ length: 1 + random(12) }, () => (random(4) ? random(256) : random(size)));
    decoded.push({ ids, text: await t.decode(ids, true) });
  }
  out[kind] = { encoded, decoded };
}
writeFileSync(at("expected.json"), JSON.stringify(out) + "\n");
