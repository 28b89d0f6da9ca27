"""Many programs at the same time, each in a box of its own."""

import asyncio

import tidebox


async def main() -> None:
    programs = [f"print(sum(range({n})))" for n in range(0, 100, 10)]
    results = await asyncio.gather(*(tidebox.arun(program) for program in programs))
    print(*(result.text.strip() for result in results))


asyncio.run(main())
