"""Packages by name: fetched once, on top of the image, and there for the next program too."""

import tidebox
from tidebox.errors import InvalidRequest

PROGRAM = """
from tabulate import tabulate

print(tabulate([["ebb", 6], ["flow", 7]], headers=["tide", "hour"]))
"""

result = tidebox.run(PROGRAM, packages=["tabulate>=0.9"])
print(result.text, end="")

try:
    tidebox.run("import os", packages=["https://example.com/evil.whl"])
except InvalidRequest as error:
    print(f"refused: {error.details['package']}")
