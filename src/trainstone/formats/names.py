"""Names that come from files: which of them stay inside the folder or archive they are said to lie in."""


def is_inside(name: str) -> bool:
    """Say whether a name can be that of something below a folder: relative, not empty, not climbing out of it."""
    return find_escape(name) is None and any(part not in ("", ".") for part in name.split("/"))


def find_escape(name: str) -> str | None:
    """Return how a name would lead out of the folder, None if it does not. The folder's own name ("./") does not."""
    if name.startswith("/"):
        return "has an absolute name"
    if ".." in name.split("/"):
        return "has '..' in its name and would lie outside the folder"
    if "\0" in name:
        return "has a zero byte in its name"
    return None


def find_odd_character(name: str) -> str | None:
    """Return what no name may hold: control characters, and bytes that are not UTF-8."""
    for char in "" if name.isascii() and name.isprintable() else name:
        if ord(char) < 32 or 127 <= ord(char) < 160:
            return f"has the control character 0x{ord(char):02x} in its name"
        if 0xD800 <= ord(char) < 0xE000:
            return "has a name that is not UTF-8"
    return None
