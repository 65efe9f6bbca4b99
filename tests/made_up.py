"""Made-up machines for tests: /proc and /sys as trees of text files."""

from pathlib import Path


def make_tree(root: Path, files: dict[str, str]) -> Path:
    """Write the files under root; return root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
