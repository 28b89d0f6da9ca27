"""Many runs at once on a running server (`tidebox serve`), each of which is made once, whatever becomes of connections.

Give the server's address as the argument if it is not the default one.
"""

import asyncio
import sys

from tidebox.sdk import AsyncInterpreter


async def main() -> None:
    async with AsyncInterpreter(*sys.argv[1:]) as client:
        programs = [f"print(sum(range({number * 10})))" for number in range(10)]
        results = await asyncio.gather(*(client.run(["python", "-c", code]) for code in programs))
        print(*(result.text.strip() for result in results))

        answer = await client.run(["tr", "a-z", "A-Z"], stdin="high water")
        print(answer.text, answer.run.phase.value)


asyncio.run(main())
