"""Makes the two small tokenizers of the tests and, for conversations, what their chat templates give.

    python3 make.py            writes qwen/, llama/, smol/ and conversations.json; needs Jinja2 (made with 3.1.6)
    node expect.mjs            writes expected.json with Hugging Face's tokenizers (made with 0.23.2 from npm)

The merges are trained here, on the sentences below and the text of this repository's LICENSE.
"""

import json
import pathlib
import random
import re
from collections import Counter

HERE = pathlib.Path(__file__).parent
MERGES = 320

SENTENCES = """
The scheduler decides which tokens of which requests run next. It's what we've said, and they'll say it too; I'd agree.
Der Planer entscheidet, welche Anfrage als nächste läuft. Größe, Übung, naïve café.
调度器决定下一步运行哪些请求。你好，世界！ 你好吗？ トークンを数える。 안녕하세요 세계
func main() {\n\tfor i := 0; i < 100; i++ {\n\t\tfmt.Println(i)\n\t}\n}\n
{"name": "get_weather", "arguments": {"place": "Bonn", "days": 3}}
😀😀 🙂 👍🏽 1234567890 3.14159 2026-11-30
""" * 4


def alphabet():
    printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars, spare = {b: chr(b) for b in printable}, 0x100
    for b in range(256):
        if b not in chars:
            chars[b] = chr(spare)
            spare += 1
    return chars


ALPHABET = alphabet()


def train(text):
    words = Counter(re.findall(r" ?\w+|[^\w\s]+|\s+", text))
    words = {tuple(ALPHABET[b] for b in w.encode()): n for w, n in words.items()}
    merges = []
    while len(merges) < MERGES:
        pairs = Counter()
        for w, n in words.items():
            for pair in zip(w, w[1:]):
                pairs[pair] += n
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        new = {}
        for w, n in words.items():
            out, i = [], 0
            while i < len(w):
                if w[i : i + 2] == best:
                    out.append(w[i] + w[i + 1])
                    i += 2
                else:
                    out.append(w[i])
                    i += 1
            new[tuple(out)] = new.get(tuple(out), 0) + n
        words = new
    return merges


QWEN_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def added(first, tokens):
    return [
        {"id": first + i, "content": content, "single_word": "word" in flags, "lstrip": "left" in flags,
         "rstrip": "right" in flags, "normalized": "normal" in flags, "special": "special" in flags}
        for i, (content, *flags) in enumerate(tokens)
    ]


def tokenizer(words, merges, tokens, normalizer, post, **model):
    vocab = {c: i for i, c in enumerate(sorted(ALPHABET.values()))}
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    extra = added(len(vocab), tokens)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    if post:
        post["special_tokens"] = {a["content"]: {"id": a["content"], "ids": [a["id"]], "tokens": [a["content"]]} for a in extra[:1]}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": extra, "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}, level]},
        "post_processor": {"type": "Sequence", "processors": [{**level, "use_regex": True}, post]} if post else level,
        "decoder": {**level, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "" if not post else None,
                  "end_of_word_suffix": "" if not post else None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocab, "merges": [list(m) if post else " ".join(m) for m in merges], **model},
    }


QWEN_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "You may call these functions:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\nAnswer with <tool_call>{\\"name\\": …, \\"arguments\\": …}</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.last < 0 and message.role == "user" %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set parts = content.split('</think>') %}
            {%- set thought = parts[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = parts[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and thought %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or content %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {%- if call.function.arguments is string %}
                {{- call.function.arguments }}
            {%- else %}
                {{- call.function.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA_TEMPLATE = """\
{# white space around these tags is the template's own #}
{{- bos_token }}
{% macro head(role) %}<|head|>{{ role }}<|end_head|>

{% endmacro %}
{% for message in messages if message.role != 'skip' %}
  {% if message.role not in ['system', 'user', 'assistant', 'tool'] %}
    {{ raise_exception('no role "' + message.role + '" here') }}
  {% endif %}
{{ head(message.role) }}
  {%- if loop.first and tools is not none -%}
Answer: {{ message.content | trim }}{%- if tools %} with {{ tools | length }} tool{{ 's' if tools | length > 1 }}:
{% for t in tools %}
{{ t | tojson(indent=4) }}

{% endfor %}
{% endif %}
  {%- else %}
    {%- if message.tool_calls %}
      {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
      {%- set call = message.tool_calls[0].function -%}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
    {%- elif message.role == 'tool' -%}
{"output": {{ message.content | tojson }}, "id": "{{ message.tool_call_id }}", "of": {{ {"a": {"b": loop.index}} | tojson(separators=(',', ':')) }}}
    {%- else -%}
{{ message['content'] | trim }}
    {%- endif %}
  {%- endif -%}
<|eot|>
{%- endfor %}
{%- if add_generation_prompt %}
<|head|>assistant<|end_head|>{{ '\\n\\n' }}
{%- endif -%}
"""

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a \"place\", <b>é & 漢</b>\u2028\x7f", "parameters": {
        "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer", "enum": [1, 2.5, None, True, 1e20, 1e-7, 3.0]}, "any": {}, "of": []},
        "required": ["place"]}}},
    {"type": "function", "function": {"name": "stop", "parameters": {"zoom": 1, "alpha": -0.0}}},
]


def call(name, arguments, id="call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


CONVERSATIONS = {
    "one message": {"messages": [{"role": "user", "content": "Hi  there\n"}]},
    "system and history": {"messages": [
        {"role": "system", "content": " You are é. "}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"}, {"role": "user", "content": "More \\ \"quoted\" {{ braces }} {% too %}\n\n"}]},
    "no thinking": {"messages": [{"role": "user", "content": "Hi"}], "options": {"enable_thinking": False}},
    "tools": {"messages": [{"role": "system", "content": "Sys"}, {"role": "user", "content": "Weather?"}], "tools": TOOLS},
    "a call and its result": {"messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": "Köln <x>", "days": 2, "z": 1.5, "a": [1, "b", None, False], "e": {}})]},
        {"role": "tool", "content": "{\"t\": 3}", "tool_call_id": "call_1"}, {"role": "user", "content": "And?"}], "tools": TOOLS[:1]},
    "two calls": {"messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call("get_weather", {"place": "A"}), call("get_weather", {"place": "B"}, "call_2")]},
        {"role": "tool", "content": "1", "tool_call_id": "call_1"}, {"role": "tool", "content": "2", "tool_call_id": "call_2"}], "tools": TOOLS},
    "reasoning apart": {"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "because"}]},
    "unknown role": {"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]},
}


def conversations():
    """Renders as transformers does: trim_blocks, lstrip_blocks, its tojson; arguments are objects, as vLLM passes them."""
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(message):
        raise TemplateError(message)

    env.globals["raise_exception"] = refuse
    out = []
    for name, conv in CONVERSATIONS.items():
        case = {"name": name, **conv}
        messages = json.loads(json.dumps(conv["messages"]))
        for m in messages:
            for c in m.get("tool_calls", []):
                c["function"]["arguments"] = json.loads(c["function"]["arguments"])
        for kind, source in (("qwen", QWEN_TEMPLATE), ("llama", LLAMA_TEMPLATE)):
            try:
                case[kind] = env.from_string(source).render(
                    messages=messages, tools=conv.get("tools"), documents=None, add_generation_prompt=True,
                    bos_token="<|begin|>", eos_token="<|im_end|>", **conv.get("options", {}))
            except TemplateError as e:
                case[kind + "_error"] = str(e)
        out.append(case)
    return out


def texts():
    chars = "abcdefghij THE the  \n\n\t\r123'’sſtdm.,;!?-_(){}[]<|>éÉÄäßñ漢字你好あア안녕🙂😀👍🏽\u200d\u0301\u0308\u00a0\u0085\u2028\u3000\x00\x1c\x7f٣४ⅷ²ǅ"
    r = random.Random(7)
    fixed = [
        "", " ", "  ", "\n", "\r\n", "Hello, world!", "it's IT'S we'VE I'd'll 'ſ x'ſt", "  two leading and trailing  ", "a\n\n\nb \n c\t\td",
        "1234567 12 3.14 ٣٤٥ ⅷ²", "naïve café e\u0301 A\u030a \u1e9b\u0323 \ufb01", "漢字仮名交じり文", "안녕하세요", "👩\u200d👩\u200d👧 🇩🇪",
        "<|im_start|>user\nHi<|im_end|>\n", "<|begin|>x<|eot|>", "x<|eot|", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<think></think>",
        "a <pad>  b", "  <left> c", "word wordy aword word.", "é<norm>é e\u0301<norm>e\u0301", "<nörm> <no\u0308rm>", "<long><longer><longest>",
        "x" * 300, " " * 50 + "x", "ab" * 100, "\u00a0\u0085\u3000 x", "\x00\x01\x7f\ufffd\ufeff\ue000", "for i := 0; i < 100; i++ {\n\t\tfmt.Println(i)\n\t}\n}\n",
    ]
    return fixed + ["".join(r.choice(chars) for _ in range(r.randint(1, 40))) for _ in range(150)]


def write(name, value):
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def main():
    corpus = SENTENCES + (HERE / "../../../../LICENSE").read_text()
    merges = train(corpus)
    extra = [("<tool_call>",), ("</tool_call>",), ("<think>",), ("</think>",), ("<pad>", "right", "left", "special"), ("<left>", "left"),
             ("word", "word"), ("<norm>", "normal"), ("<nörm>", "normal"), ("<long>",), ("<longer>",), ("<longest>",)]
    write("qwen/tokenizer.json", tokenizer(
        QWEN_WORDS, merges, [("<|endoftext|>", "special"), ("<|im_start|>", "special"), ("<|im_end|>", "special"), *extra], {"type": "NFC"}, None))
    write("llama/tokenizer.json", tokenizer(
        LLAMA_WORDS, merges, [("<|begin|>", "special"), ("<|head|>", "special"), ("<|end_head|>", "special"), ("<|eot|>", "special")], None,
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": []},
        ignore_merges=True))
    smol = tokenizer("", merges, [("<|endoftext|>", "special"), ("<|im_start|>", "special"), ("<|im_end|>", "special")], None, None)
    smol["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, smol["decoder"]]}
    write("smol/tokenizer.json", smol)
    write("qwen/tokenizer_config.json", {"bos_token": None, "eos_token": "<|im_end|>", "chat_template": QWEN_TEMPLATE})
    write("llama/tokenizer_config.json", {"bos_token": {"content": "<|begin|>", "lstrip": False}, "eos_token": "<|eot|>", "chat_template": "{# not this one #}"})
    write("llama/chat_template.jinja", LLAMA_TEMPLATE)
    write("conversations.json", conversations())
    write("texts.json", texts())


if __name__ == "__main__":
    main()
