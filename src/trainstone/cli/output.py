"""JSON on stdout: one document, in characters that stdout can carry."""

import json
import sys
from typing import Any


def print_json(document: Any) -> None:
    """Print it as files hold it; where stdout is not UTF-8, other characters are escaped."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(document, indent=2, ensure_ascii=not unicode, allow_nan=False))
