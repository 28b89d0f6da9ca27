"""Files into a box and out of it again."""

import tidebox

PROGRAM = """
import csv, json
with open("people.csv") as file:
    people = list(csv.DictReader(file))
with open("ages.json", "w") as file:
    json.dump({person["name"]: int(person["age"]) for person in people}, file)
"""

result = tidebox.run(
    PROGRAM,
    files={"people.csv": b"name,age\nAda,36\nAlan,41\n"},
    artifacts=["*.json"],
)
for name, content in result.artifacts.items():
    print(name, content.decode())
