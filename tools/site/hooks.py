"""What ./run docs adds to mkdocs: a search that works from disk, and links to code in the clone."""

import pathlib
import re

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def on_files(files, config):
    """Styles lie beside the hooks, not among the pages."""
    from mkdocs.structure.files import File

    files.append(File("site.css", str(_ROOT / "tools/site"), config["site_dir"], False))
    return files


def on_page_markdown(markdown, page, config, files):
    """GitHub's markdown to Python's: one word after a fence, and code in list items by indentation."""
    lines, margin = [], None
    for line in markdown.split("\n"):
        fence = re.match(r"( *)(```\w*)", line)
        if fence and margin is None:
            margin = fence.group(1)
            lines.append("" if margin else fence.group(2))
        elif fence:
            lines.append("" if margin else fence.group(2))
            margin = None
        elif margin:
            lines.append(8 * " " + line.removeprefix(margin))
        elif margin is None and re.match(r" {3}\S", line):
            lines.append(" " + line)
        elif margin is None and re.match(r"\d+\. ", line):
            lines += ["", line]
        else:
            lines.append(line)
    return "\n".join(lines)


def on_page_content(html, page, config, files):
    """Wide tables scroll by themselves; the page does not. What GitHub needs before a bar in a cell is not shown."""

    def wide(table):
        return '<div class="wide">' + table[0].replace("\\|", "|") + "</div>"

    return re.sub(r"<table>.*?</table>", wide, html, flags=re.S)


def on_post_build(config):
    """A browser reads no JSON and starts no worker from disk, so the index becomes a script."""
    search = pathlib.Path(config["site_dir"]) / "search"
    index = (search / "search_index.json").read_text()
    (search / "index.js").write_text("tuttiSearch(" + index + ");\n")
    (search / "main.js").write_text((_ROOT / "tools/site/search.js").read_text())
    for left in ("search_index.json", "worker.js"):
        (search / left).unlink()
