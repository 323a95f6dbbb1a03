#!/usr/bin/env python3
"""Writes tutti/speech/text/unicode_tables.inc from this Python's unicodedata."""
import pathlib
import sys
import unicodedata

LAST = 0x110000


def category_ranges():
    """Marks, symbols and punctuation as closed ranges."""
    ranges = []
    for c in range(LAST):
        if unicodedata.category(chr(c))[0] in "MSP":
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
    return ranges


def case_ranges(convert):
    """One-to-one case pairs as (first, last, step, delta)."""
    pairs = []
    for c in range(LAST):
        to = convert(chr(c))
        if len(to) == 1 and ord(to) != c:
            pairs.append((c, ord(to) - c))
    ranges = []
    for c, delta in pairs:
        if ranges and ranges[-1][3] == delta:
            first, last, step, _ = ranges[-1]
            gap = c - last
            if gap in (1, 2) and (first == last or gap == step):
                ranges[-1] = (first, c, gap, delta)
                continue
        ranges.append((c, c, 1, delta))
    return ranges


def rows(items):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) > 98:
            lines.append(line)
            line = "   "
        line += " " + item
    return "\n".join(lines + [line])


def main():
    out = pathlib.Path(__file__).resolve().parent.parent / "tutti/speech/text/unicode_tables.inc"
    hexes = lambda values: "{" + ",".join(hex(v) for v in values) + "},"
    cases = lambda r: rows("{%s,%s,%d,%d}," % (hex(a), hex(b), s, d) for a, b, s, d in r)
    out.write_text(
        f"// Written by tools/make_unicode_tables.py (Unicode {unicodedata.unidata_version}). Do not edit.\n"
        "// clang-format off\n"
        "constexpr CharRange kMarksSymbolsPunctuation[] = {\n" + rows(map(hexes, category_ranges())) + "\n};\n"
        "constexpr CaseRange kToLower[] = {\n" + cases(case_ranges(str.lower)) + "\n};\n"
        "constexpr CaseRange kToUpper[] = {\n" + cases(case_ranges(str.upper)) + "\n};\n"
        "// clang-format on\n"
    )


sys.exit(main())
