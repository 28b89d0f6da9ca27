"""The names of one box: each is resolved once, at its start or when it is first asked for, and stands for that then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from tidebox.egress import dns
from tidebox.egress.messages import MOST_PINNED, MOST_PINNED_ADDRESSES
from tidebox.model.egress import Address, EgressDecision, EgressPolicy, normal_name, parse_address

# Names that one box has asked for outside at one time: others wait for the same sockets, and some servers never answer.
MOST_AT_ONCE = 32
_SETTLE_SECONDS = 3.0


class Asks(Protocol):
    """Asks outside."""

    async def addresses(self, name: str) -> dns.DnsAnswer:
        """Resolve a name."""


class Names:
    """The pinned names of one box, and the decisions that follow from them."""

    def __init__(
        self,
        policy: EgressPolicy,
        pins: Mapping[str, tuple[str, ...]],
        resolver: Asks,
        on_pinned: Callable[[str, tuple[Address, ...]], None],
    ) -> None:
        """``pins`` are names that were resolved for this box before."""
        self._resolver = resolver
        self._on_pinned = on_pinned
        self._addresses: dict[str, tuple[Address, ...]] = {}
        self._names: dict[Address, list[str]] = {}
        self._verdicts: dict[Address, EgressDecision] = {}
        self._asking: dict[str, asyncio.Task[dns.DnsAnswer]] = {}
        self._asked = self._pinned = 0
        self._turn = asyncio.Semaphore(MOST_AT_ONCE)
        for name, found in pins.items():
            self._pin(name, tuple(map(parse_address, found)))
        self.follow(policy)

    def follow(self, policy: EgressPolicy) -> None:
        """Go by these rules from now on, and resolve what they have by name."""
        self._policy = policy
        self._verdicts.clear()
        for name in policy.pinned_names():
            if name not in self._addresses:
                self._ask(name)

    def of(self, address: Address) -> list[str]:
        """The names that stand for an address."""
        return self._names.get(address, [])

    def decide(self, address: Address) -> EgressDecision:
        """Return the egress decision for an address, by the rules and the names pinned to it.

        Kept: a box may have thousands of names for one address, and connects a thousand times in a second.
        """
        found = self._verdicts.get(address)
        if found is None:
            found = self._policy.decide(address, self.of(address))
            if len(self._verdicts) < MOST_PINNED:
                self._verdicts[address] = found
        return found

    async def settled(self) -> None:
        """Wait for the names that are being resolved, which does not take long."""
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=_SETTLE_SECONDS)

    async def look_up(self, text: str) -> dns.DnsAnswer:
        """Answer a program's DNS question; ``REFUSED`` where the policy does not allow the name."""
        name = normal_name(text)
        if name is None:
            return dns.DnsAnswer(dns.REFUSED, ())
        if name not in self._addresses:
            task = self._asking.get(name)
            if task is None:
                if not self._policy.may_ask(name) or self._has_enough():
                    return dns.DnsAnswer(dns.REFUSED, ())
                task = self._ask(name)
            answer = await asyncio.shield(task)
            if answer.code not in (dns.NO_ERROR, dns.NO_SUCH_NAME):
                return answer
        found = self._addresses[name]
        # An address that the policy denies by itself is of no use to a program.
        allowed = tuple(address for address in found if self._policy.decide(address, [name]).allowed)
        if found and not allowed:
            return dns.DnsAnswer(dns.REFUSED, found)
        return dns.DnsAnswer(dns.NO_ERROR if found else dns.NO_SUCH_NAME, allowed)

    def _has_enough(self) -> bool:
        return self._asked >= MOST_PINNED or self._pinned >= MOST_PINNED_ADDRESSES

    def _ask(self, name: str) -> asyncio.Task[dns.DnsAnswer]:
        if name not in self._asking:
            self._asked += 1
            self._asking[name] = asyncio.get_running_loop().create_task(self._resolve(name))
        return self._asking[name]

    async def _resolve(self, name: str) -> dns.DnsAnswer:
        try:
            async with self._turn:
                answer = await self._resolver.addresses(name)
            if answer.code in (dns.NO_ERROR, dns.NO_SUCH_NAME):
                self._pin(name, answer.addresses)
                self._on_pinned(name, answer.addresses)
            return answer
        finally:
            del self._asking[name]

    def _pin(self, name: str, addresses: tuple[Address, ...]) -> None:
        self._addresses[name] = addresses
        self._pinned += len(addresses)
        for address in addresses:
            self._names.setdefault(address, []).append(name)
            self._verdicts.pop(address, None)

    def close(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()
