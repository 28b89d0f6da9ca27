"""The same program in containers: another boundary, and images from elsewhere. Needs an engine: docs/runtimes.md."""

import tidebox
from tidebox.errors import RuntimeUnavailable

result = tidebox.run("import sys; print('Python', sys.version_info[0])", runtime="docker")
print(result.text, end="")

result = tidebox.run(command=["sh", "-c", "echo no Python needed"], runtime="docker", image="busybox")
print(result.text, end="")

try:
    tidebox.run("pass", runtime="firecracker")
except RuntimeUnavailable as error:
    print(error.code, "docker" in error.details["suggested"])
