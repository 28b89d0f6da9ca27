"""Many programs at once on one connection to a running server, and one that is cancelled."""

import asyncio
import sys

from tidebox.sdk import AsyncClient


async def main() -> None:
    async with AsyncClient(*sys.argv[1:]) as client:
        programs = [f"print(sum(range({n})))" for n in range(0, 100, 10)]
        results = await asyncio.gather(*(client.run(program) for program in programs))
        print(*(result.text.strip() for result in results))

        async with await client.start("print('ready')\nwhile True: pass", timeout=60) as execution:
            async for _stream, _text in execution:
                break
            await execution.cancel()
            print((await execution.result()).outcome.value)


asyncio.run(main())
