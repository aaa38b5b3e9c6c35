"""What the package believes of the library, against the header."""

import ctypes
import re
import unittest
from pathlib import Path

from sluice import _library, _structs, enums

HEADER = Path(__file__).parents[2] / "include" / "sluice.h"

SCALARS = {
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "size_t": ctypes.c_size_t,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "sluice_request_id": ctypes.c_uint64,
    "sluice_handle": ctypes.c_uint64,
}


def text() -> str:
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)


def class_name(c: str) -> str:
    return "".join(w.capitalize() for w in c.replace("sluice_", "", 1).removesuffix("_t").split("_"))


def declared(name: str, declaration: str) -> "list[tuple[str, object]]":
    """The fields of one declaration of C."""
    base, rest = re.match(r"(?:const )?(\w+) (.*)$", declaration).groups()
    out = []
    for part in rest.split(","):
        stars, field, size = re.match(r"\s*(\**)(\w+)(?:\[(\d+)\])?$", part).groups()
        kind: object
        if base == "char" and stars:
            kind = ctypes.POINTER(ctypes.c_uint8) if field == "texts" else ctypes.c_char_p
        else:
            kind = SCALARS.get(base) or getattr(_structs, class_name(base))
            for _ in stars:
                kind = ctypes.POINTER(kind)
        if size:
            kind = kind * int(size)  # type: ignore[operator]
        out.append((field, kind))
    return out


class Header(unittest.TestCase):
    def test_structures(self) -> None:
        seen = 0
        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text(), flags=re.S):
            with self.subTest(name=name):
                want = [f for d in body.split(";") if d.strip() for f in declared(name, " ".join(d.split()))]
                self.assertEqual(getattr(_structs, class_name(name))._fields_, want)
                seen += 1
        self.assertGreater(seen, 15)

    def test_functions(self) -> None:
        names = re.findall(r"\b(sluice_\w+)\(([^)]*)\);", text())
        self.assertEqual(sorted(n for n, _ in names), sorted(_library.FUNCTIONS))
        for name, arguments in names:
            count = 0 if arguments == "void" else arguments.count(",") + 1
            self.assertEqual(len(_library.FUNCTIONS[name][1]), count, name)

    def test_enumerations(self) -> None:
        seen = 0
        for name, body in re.findall(r"typedef enum (\w+) \{(.*?)\} \w+;", text(), flags=re.S):
            values = {k.removeprefix("SLUICE_"): int(v) for k, v in re.findall(r"(\w+) = (\d+)", body)}
            cls = getattr(enums, {"Class": "RowClass"}.get(class_name(name), class_name(name)))
            self.assertEqual(sorted(int(m) for m in cls), sorted(values.values()), name)
            for member in cls:
                self.assertTrue(any(k.endswith(member.name) and v == member for k, v in values.items()), f"{name}: {member.name}")
            seen += 1
        self.assertGreater(seen, 15)

    def test_version(self) -> None:
        self.assertEqual(int(re.search(r"#define SLUICE_ABI_VERSION (\d+)", HEADER.read_text()).group(1)), _library.ABI_VERSION)
        self.assertEqual(_library.load().sluice_abi_version(), _library.ABI_VERSION)

    def test_library_that_is_not_there(self) -> None:
        with self.assertRaisesRegex(OSError, "/nowhere/libsluice.so.*make lib.*SLUICE_LIB"):
            _library.load("/nowhere/libsluice.so")


if __name__ == "__main__":
    unittest.main()
