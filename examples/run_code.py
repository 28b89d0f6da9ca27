"""Run code in a fresh box, give it input, look at how it ended."""

import tidebox

result = tidebox.run("print(input()[::-1])", stdin="edit")
print(result.text, end="")

result = tidebox.run("console.log([1, 2, 3].map(x => x * x).join())", language="javascript")
print(result.text, end="")

result = tidebox.run(command=["sh", "-c", "echo no such luck >&2; exit 3"])
print(result.outcome.value, result.exit_code, result.stderr.decode(), end="")
