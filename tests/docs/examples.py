"""Writes one file to compile of the examples in the public headers' comments and of the ```cpp blocks in docs/.

usage: examples.py ROOT TEMPLATE OUT

An example in a header is a block of comment lines that are indented by three spaces; what is not C++ is fenced. The template has
a line "@FILE@" where the first example of a file goes ("@FILE 2@": the second), with the names it uses declared around it. A file
whose example the template does not have, or the other way round, is an error.
"""

import pathlib
import re
import sys


def header_examples(text):
    """(number of the first line, lines) of each."""
    found, before = [], ""
    for number, line in enumerate(text, 1):
        code = re.match(r" *//   (.*)", line)
        if code and before == "example":
            found[-1][1].append(code[1])
        elif code and before == "blank":
            found.append((number, [code[1]]))
        before = "example" if code and before else "blank" if re.fullmatch(r" *//", line) else ""
    return found


def page_examples(text):
    found, inside = [], False
    for number, line in enumerate(text, 1):
        if line.startswith("```"):
            inside = line == "```cpp"
            if inside:
                found.append((number + 1, []))
        elif inside:
            found[-1][1].append(line)
    return found


def main():
    root, template, out = map(pathlib.Path, sys.argv[1:])
    lines = lambda file: (root / file).read_text().split("\n")
    headers = [line for line in lines("cmake/public_headers.txt") if line.startswith("tutti/")]
    pages = [str(page.relative_to(root)) for page in sorted((root / "docs").glob("*.md"))]
    waiting = {(file, n): block for file in headers for n, block in enumerate(header_examples(lines(file)), 1)}
    waiting |= {(file, n): block for file in pages for n, block in enumerate(page_examples(lines(file)), 1)}
    text = [f'#include "{header}"' for header in headers]
    for number, line in enumerate(lines(template), 1):
        place = re.fullmatch(r" *@(\S+?)(?: (\d+))?@", line)
        if not place:
            text.append(line)
            continue
        block = waiting.pop((place[1], int(place[2] or 1)), None)
        if block is None:
            sys.exit(f"{template}:{number}: {line.strip()}: no such example (or it is there twice)")
        # Errors of the compiler then name the line of the header or page.
        text += [f'#line {block[0]} "{root / place[1]}"', *block[1], f'#line {number + 1} "{template}"']
    for (file, n), block in waiting.items():
        sys.exit(f"{file}:{block[0]}: an example that {template} does not compile: add '@{file} {n}@' there")
    out.write_text("\n".join(text))


main()
