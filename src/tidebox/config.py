"""Settings: the only module that reads the environment.

Read by hand, not by a validation library: importing one takes several times as long as running a program in a box.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidebox.errors import InvalidRequest
from tidebox.model.languages import BUILT_IN, Languages
from tidebox.model.node import is_node_id
from tidebox.model.remote_servers import RemoteServer, read_servers
from tidebox.model.runtimes import BOUNDARIES

if TYPE_CHECKING:
    from tidebox.model.requested_egress import RequestedEgress

PREFIX = "SANDBOX_"
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "tidebox"


def _default_runtime() -> str:
    # Elsewhere containers are in a Linux machine of their own.
    return "native" if sys.platform == "linux" else "docker"


def _setting(
    description: str,
    parse: Callable[[str], Any],
    default: Any = None,
    *,
    factory: Callable[[], Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    secret: bool = False,
) -> Any:
    metadata = {"description": description, "parse": parse, "low": low, "high": high, "secret": secret}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata, repr=not secret)


def _flag(text: str) -> bool:
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise ValueError("give yes or no") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("give a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("give a number") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def _url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https") or not rest or rest.startswith("/") or not text.isprintable() or " " in text:
        raise ValueError("give a URL that begins with http:// or https://")
    return text.rstrip("/")


def _texts(text: str) -> tuple[str, ...]:
    """A list of texts with commas between them, or as JSON."""
    if text.lstrip().startswith("["):
        import json

        found = json.loads(text)
        if not found or not all(isinstance(item, str) for item in found):
            raise ValueError("give texts with commas between them, or a JSON list of texts")
        return tuple(found)
    return _words(text)


def _network_policy(text: str) -> str:
    if text not in ("deny_all", "allowlist"):
        raise ValueError("give deny_all or allowlist")
    return text


def _boundary(text: str) -> str:
    if text not in BOUNDARIES:
        raise ValueError(f"give {', '.join(BOUNDARIES[:-1])} or {BOUNDARIES[-1]}")
    return text


def _language_images(text: str) -> tuple[str, ...]:
    found = _words(text)
    for word in found:
        language, _, image = word.partition("=")
        if not language or not image:
            raise ValueError("give languages with their images, such as python=python:3.12,go=golang:1.22")
    return found


def _urls(text: str) -> tuple[str, ...]:
    return tuple(map(_url, _words(text)))


def _networks(text: str) -> tuple[str, ...]:
    import ipaddress

    try:
        return tuple(str(ipaddress.ip_network(word)) for word in _words(text))
    except ValueError:
        raise ValueError("give addresses such as 10.0.0.1 or networks such as 10.0.0.0/8") from None


def _packages(text: str) -> tuple[str, ...]:
    found = _words(text)
    if not found or (len(found) > 1 and {"any", "off"} & set(found)):
        raise ValueError("give any, off, or names of packages with commas between them")
    return found


def _store_backend(text: str) -> str:
    if text not in ("sqlite", "memory", "postgres"):
        raise ValueError("give sqlite, memory or postgres")
    return text


def _postgres_url(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("give a URL that begins with postgresql://")
    return "postgresql://" + text.partition("://")[2]


def _node_id(text: str) -> str:
    if not is_node_id(text):
        raise ValueError("give 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit")
    return text


def _git_schemes(text: str) -> tuple[str, ...]:
    found = _words(text)
    if not set(found) <= {"https", "http", "git"}:
        raise ValueError("give https, http or git, with commas between them")
    return found


def _scoping(text: str) -> str:
    if text not in ("thread", "assistant", "user", "run"):
        raise ValueError("give thread, assistant, user or run")
    return text


_ALL_CAPABILITIES = ("fs_read", "fs_write", "exec", "shell")


def _capabilities(text: str) -> tuple[str, ...]:
    found = _words(text.replace("+", ","))
    if not found or not set(found) <= set(_ALL_CAPABILITIES):
        raise ValueError(f"give some of {', '.join(_ALL_CAPABILITIES)}")
    return found


def _role_capabilities(text: str) -> tuple[str, ...]:
    found = _words(text)
    for word in found:
        role, _, allowed = word.partition("=")
        if not role or not allowed:
            raise ValueError("give roles and what they may do, such as viewer=fs_read+fs_write")
        _capabilities(allowed)
    return found


def _egress_allowlist(text: str) -> RequestedEgress | None:
    import json

    from tidebox.model.requested_egress import read_requested_egress

    try:
        found = read_requested_egress(json.loads(text))
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    except (ValueError, RecursionError):
        raise ValueError('give JSON such as {"hosts": ["example.com"], "cidrs": [], "ips": []}') from None
    if found.events or found.headers or found.signing or found.secrets:
        raise ValueError("give hosts, cidrs, ips and packages alone")
    return found if found.rules or found.packages else None


def _egress_resolver(text: str) -> str:
    import ipaddress

    # Without brackets an address of IPv6 has no port: colons are all it is made of.
    bare = text.count(":") > 1 and not text.startswith("[")
    host, _, port = (text, "", "") if bare or ":" not in text or text.endswith("]") else text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port or "53")
    except ValueError:
        raise ValueError("give an address and a port, such as 192.0.2.53:53 or [2001:db8::53]:53") from None
    if not 0 < number < 65536:
        raise ValueError("give a port of 1 to 65535")
    return f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"


def _egress_proxy(text: str) -> str:
    from urllib.parse import urlsplit

    wrong = ValueError("give the URL of a proxy: http://proxy.example:3128, with user:password@ where it wants them")
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        raise wrong from None
    if not usable or not text.isprintable() or parts.query or parts.fragment:
        raise wrong
    return text


def _level(text: str) -> str:
    if text not in ("debug", "info", "warning", "error"):
        raise ValueError("give debug, info, warning or error")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an operator can set, each by an environment variable ``SANDBOX_<NAME>``."""

    data_dir: Path = _setting("Where images, sockets and state live.", Path, factory=_default_data_dir)
    allow_weak_isolation: bool = _setting(
        "Open boxes although a guarantee is missing on this machine. Every box says so.", _flag, False
    )
    allow_nested_filters: bool = _setting(
        "Let programs load system call filters of their own, as the inner sandbox of a browser does. Thousands of "
        "them can hang some kernels: only for programs that are trusted that far.",
        _flag,
        False,
    )
    python: str | None = _setting(
        "The interpreter of the host image; by default the system's python3, if it is new enough.", str
    )
    pool_blank: int = _setting("Boxes kept ready without an interpreter.", _whole, 2, low=0, high=256)
    pool_python: int = _setting("Parked cells for Python, shell and plain commands.", _whole, 4, low=0, high=256)
    pool_node: int = _setting("Parked cells for JavaScript.", _whole, 1, low=0, high=64)
    pool_elixir: int = _setting(
        "Parked cells for Elixir, kept from its first program on; each is a whole BEAM.", _whole, 1, low=0, high=16
    )
    pool_guests: int = _setting(
        "Further kinds of cells kept once asked for: other images, programs that import much. The least recently used "
        "goes first; 0 keeps none.",
        _whole,
        8,
        low=0,
        high=64,
    )
    warm_images: tuple[str, ...] = _setting(
        "Images whose interpreters are kept parked from the start; others from their first program on.", _words, ()
    )
    pool_max_age_sec: float = _setting("A parked cell older than this is replaced unused.", _number, 600.0, low=1)

    docker_host: str | None = _setting(
        "Where the Docker engine is: unix:///path, or tcp://host with TLS (DOCKER_TLS_VERIFY, DOCKER_CERT_PATH). By "
        "default DOCKER_HOST, or the socket of Docker or Podman at its usual place.",
        str,
    )
    docker_images: tuple[str, ...] = _setting(
        "Patterns of the images that may be used on docker, with commas between them: python:*,ghcr.io/ours/*. By "
        "default every image may.",
        _words,
        (),
    )
    docker_prepull: tuple[str, ...] = _setting(
        "Images that the engine is to have before anybody asks for them, with commas between them.", _words, ()
    )
    docker_warm: int = _setting(
        "Containers kept ready for each image in use, with its interpreter parked; 0 starts each when it is asked for.",
        _whole,
        0,
        low=0,
        high=64,
    )
    docker_seccomp: Path | None = _setting(
        "A system call profile in Docker's format, in place of the one that is as strict as the native filter.", Path
    )
    docker_runtime: str | None = _setting(
        "By which of its runtimes the Docker engine makes containers, such as runsc; by default its own.", str
    )
    docker_apparmor_profile: str | None = _setting(
        "The name of the AppArmor profile of containers, used where the kernel has AppArmor; the package has one in "
        "tidebox/runtime/docker/tidebox.apparmor, to be loaded with apparmor_parser.",
        str,
    )

    gvisor_runsc: str | None = _setting(
        "The path of gVisor's runsc, for the gvisor runtime; by default it is found on the PATH.", str
    )
    gvisor_platforms: tuple[str, ...] = _setting(
        "By which ways runsc may run programs, with commas between them: systrap,ptrace,kvm is the order in which they "
        "are tried by default. The first that boots something is used.",
        _words,
        (),
    )
    gvisor_warm: int = _setting(
        "Sandboxes of gVisor kept ready for each image in use, with its interpreter parked; 0 starts each when it is "
        "asked for.",
        _whole,
        1,
        low=0,
        high=64,
    )

    host: str = _setting("Address the server listens on.", str, "127.0.0.1")
    port: int = _setting("Port the server listens on; 0 takes a free one.", _whole, 8787, low=0, high=65535)
    public_url: str | None = _setting(
        "The server's address as its clients see it, when a proxy stands before it: https://boxes.example.", _url
    )
    enable_execution: bool = _setting("Whether the server runs programs.", _flag, True)
    drain_grace_sec: float = _setting(
        "How long a server that is told to stop waits for the programs that still run.", _number, 20.0, low=0
    )
    api_key: str | None = _setting(
        "The key of the single user; by default one is made and kept in the file api-key of the data directory.",
        str,
        secret=True,
    )
    auth_jwt_secret: str | None = _setting(
        "Accept bearer tokens signed with this secret (HS256), of at least 32 bytes.", str, secret=True
    )
    auth_jwks_file: Path | None = _setting(
        "Accept bearer tokens signed by a key of this JWKS file (RS256, EdDSA).", Path
    )
    auth_jwt_audience: str | None = _setting("The audience that a bearer token must be made out to.", str)
    auth_jwt_issuer: str | None = _setting("The issuer that a bearer token must come from.", str)
    allowed_origins: tuple[str, ...] = _setting(
        "Origins whose web pages may use the server, with commas between them; its own always may.", _urls, ()
    )
    trusted_proxies: tuple[str, ...] = _setting(
        "Addresses or networks of proxies whose X-Forwarded headers are believed, with commas between them.",
        _networks,
        (),
    )
    rate_limit: str = _setting(
        "Requests of one user with a token in a time, such as 600/minute, or off. The API key has no limit.",
        str,
        "6000/minute",
    )
    max_body_bytes: int = _setting(
        "The longest body of a request that has no other limit.", _whole, 1024 * 1024, low=1024, high=64 * 1024 * 1024
    )
    max_inline_body_bytes: int = _setting(
        "The longest body of a request that has files or input within it: runs, files of a session as JSON, programs "
        "in a sandbox. The server does nothing else while it reads one.",
        _whole,
        4 * 1024 * 1024,
        low=1024,
        high=64 * 1024 * 1024,
    )
    max_connections: int = _setting(
        "Connections that are open at once, if three quarters of the descriptors are enough for them.",
        _whole,
        8192,
        low=1,
    )
    max_connections_per_address: int = _setting(
        "Connections of one address (of IPv6, a /64 network) that are open at once, and no more than half of all; "
        "trusted proxies have no such limit.",
        _whole,
        4096,
        low=1,
    )
    max_concurrent_runs: int = _setting("Programs that run at once.", _whole, 8, low=1, high=4096)
    max_concurrent_runs_per_user: int | None = _setting(
        "Programs of one user that run at once; by default all but one where there are several users, who come with "
        "bearer tokens, and else as many as run at all.",
        _whole,
        low=1,
        high=4096,
    )
    queue_max_length: int = _setting("Programs that may wait for their turn.", _whole, 100, low=0)
    queue_max_length_per_user: int | None = _setting(
        "Programs of one user that may wait for their turn; by default half of the queue where there are several "
        "users, and else all of it.",
        _whole,
        low=0,
    )
    queue_ttl_sec: float = _setting("A program that has waited this long is given up.", _number, 120.0, low=0.1)
    max_executions_per_connection: int = _setting(
        "Executions that one WebSocket connection may have under way.", _whole, 64, low=1
    )
    max_frame_bytes: int = _setting("The longest WebSocket message of a client.", _whole, 8 * 1024 * 1024, low=1024)
    ws_buffer_frames: int = _setting(
        "Frames kept for a client that reads too slowly, before its programs have to wait; of a log stream so many of "
        "32 KiB, before the oldest are dropped.",
        _whole,
        256,
        low=1,
    )
    ws_heartbeat_sec: float = _setting(
        "Time between two pings on a WebSocket connection, and between two heartbeats of a log stream.",
        _number,
        10.0,
        low=0.1,
    )
    ws_max_streams_per_user: int = _setting("Log streams that one user may have open.", _whole, 128, low=1)
    ws_signed_urls: bool = _setting("Whether runs come with a signed URL of their log stream.", _flag, True)
    ws_signed_url_ttl_sec: float = _setting("How long a signed URL may be used.", _number, 60.0, low=1, high=86400)
    ws_signing_secret: str | None = _setting(
        "The secret that signs URLs of log streams; by default one that is made from the API key.", str, secret=True
    )
    interactive_max_frame_bytes: int = _setting(
        "The longest piece of input that an interactive run may ask to be sent.", _whole, 64 * 1024, low=1
    )
    interactive_max_bytes: int = _setting(
        "The most input that an interactive run may ask for.", _whole, 64 * 1024 * 1024, low=1
    )
    interactive_input_bps: int = _setting(
        "The most input in a second that an interactive run may ask for, in bytes.", _whole, 64 * 1024 * 1024, low=1
    )
    interactive_idle_timeout_sec: float = _setting(
        "The longest pause between two pieces of input that an interactive run may ask for.", _number, 300.0, low=0.1
    )
    orphan_grace_sec: float = _setting(
        "How long the programs of a connection that is gone may still run.", _number, 5.0, low=0
    )
    store_backend: str = _setting(
        "Where runs, sessions and keys are kept: sqlite, memory (forgotten with the server) or postgres.",
        _store_backend,
        "sqlite",
    )
    store_db_path: Path | None = _setting(
        "The file of the SQLite store; by default meta/sandbox_store.db in the data directory.", Path
    )
    store_url: str | None = _setting(
        "The database of the PostgreSQL store: postgresql://user:password@host/database.", _postgres_url, secret=True
    )
    node_id: str | None = _setting(
        "The name of this server among those on one PostgreSQL database; by default one kept in the data directory.",
        _node_id,
    )
    audit_retention_days: int = _setting("Days after which the audit log of a day is removed.", _whole, 30, low=1)

    packages: tuple[str, ...] | None = _setting(
        "Which packages programs may ask for: any, off, or names with commas between them, of Python and Node alike "
        "or, as python:NAME or node:NAME, of one. By default any for the library, the command line and the holder of "
        "the API key, and none for users with tokens.",
        _packages,
    )
    package_max_mb: int = _setting(
        "The most that the packages of one program may take, in MiB, to fetch and unpacked.", _whole, 4096, low=1
    )
    package_tool_memory_mb: int = _setting(
        "The most memory that uv or npm may take while they resolve and fetch packages, in MiB.", _whole, 2048, low=64
    )
    package_tool_cpu_sec: int = _setting(
        "The most processor time that each start of uv or npm may take, in seconds.", _whole, 120, low=1
    )
    package_cache_mb: int = _setting(
        "The most that packages which no named image has take of the disk, in MiB; beyond, those that were not used "
        "the longest go.",
        _whole,
        8192,
        low=0,
    )
    default_runtime: str = _setting(
        "The runtime of programs whose caller names none; by default native on Linux, and docker elsewhere.",
        str,
        factory=_default_runtime,
    )
    untrusted_boundary: str = _setting(
        "The weakest boundary that runs with trust_level untrusted may have: namespaces, container, user_kernel or "
        "microvm. One that names no runtime then gets one that has it.",
        _boundary,
        BOUNDARIES[0],
    )
    language_images: tuple[str, ...] = _setting(
        "The images of programs whose caller names a language and no image: python=IMAGE,javascript=IMAGE. By default "
        "host on native, and elsewhere python:3.11-slim, for JavaScript node:20-alpine.",
        _language_images,
        (),
    )
    languages: Path | None = _setting(
        "A file with languages besides those that are built in: tables [languages.NAME] in TOML.", Path
    )
    executable_scratch: bool = _setting(
        "Whether programs of compiled languages have a directory, /scratch, in which what their compiler makes can be "
        "executed, where files in /workspace cannot. Without it such programs are refused there.",
        _flag,
        True,
    )
    compile_timeout_sec: float = _setting(
        "How long a program may be compiled, besides the time that it may run.", _number, 60.0, low=0.1, high=3600
    )
    network_default: str = _setting(
        "What network a run that does not say gets: deny_all, or allowlist for what SANDBOX_EGRESS_ALLOWLIST allows.",
        _network_policy,
        "deny_all",
    )
    egress_allowlist: RequestedEgress | None = _setting(
        'What programs may reach that ask for a network: JSON such as {"hosts": ["*.example.com"], "cidrs": [], '
        '"ips": [], "packages": true}. Without it a server lets nobody out, and `tidebox run` lets a program reach '
        "what its user names.",
        _egress_allowlist,
    )
    egress_resolver: str | None = _setting(
        "Where the names of allow-lists are resolved: address:port; by default where the machine resolves names.",
        _egress_resolver,
    )
    egress_secrets: Path | None = _setting(
        "A file, readable by its owner alone, with secrets that are put into requests of programs.", Path
    )
    egress_ca_file: Path | None = _setting(
        "Certificates that servers are verified by where secrets are put into requests, besides the system's.", Path
    )
    egress_proxy: str | None = _setting(
        "A proxy that connections of programs are made through (by CONNECT): http://proxy.example:3128.",
        _egress_proxy,
        secret=True,
    )
    egress_connections: int = _setting("Connections that one box may have at once.", _whole, 256, low=1, high=65536)
    egress_connections_total: int = _setting(
        "Connections that all boxes together may have at once.", _whole, 8192, low=1, high=1048576
    )
    egress_max_mb: int = _setting("The most that one box may send and receive together, in MiB.", _whole, 16384, low=1)
    egress_rate_kib: int = _setting(
        "The most that one box may send and receive in a second, in KiB; 0 for as much as there can be.",
        _whole,
        0,
        low=0,
    )
    max_cpu: float = _setting("The most processors that a run may ask for.", _number, 4.0, low=0.01, high=1024)
    max_mem_mb: int = _setting("The most memory, in MiB, that a run may ask for.", _whole, 8192, low=8, high=1048576)
    pids_limit: int = _setting("The most processes and threads a run may have at once.", _whole, 256, low=4, high=32768)
    ulimit_nofile: int = _setting("The most descriptors one process of a run may have.", _whole, 1024, low=16)
    ulimit_nproc: int = _setting(
        "The most processes of one user in a run; bounds SANDBOX_PIDS_LIMIT, which counts all of them.",
        _whole,
        512,
        low=4,
    )
    max_log_bytes: int = _setting(
        "How much of a run's output is kept; what is beyond is dropped, and the run goes on.", _whole, 10485760, low=0
    )
    logs_cap_mb: int = _setting(
        "The most that the logs of all runs take of the disk, in MiB; beyond, the oldest go before their time.",
        _whole,
        10240,
        low=1,
    )
    max_upload_mb: int = _setting("The largest upload to a session, in MiB.", _whole, 64, low=1)
    max_upload_files: int = _setting("The most files of one upload.", _whole, 1000, low=1, high=100_000)
    max_upload_depth: int = _setting("How deep the directories of an upload may be nested.", _whole, 10, low=1, high=50)
    git_hosts: tuple[str, ...] = _setting(
        "Hosts whose git repositories are fetched for workspaces, with commas between them: a name, *.name, name:port, "
        "or * for all; none turns it off.",
        _words,
        ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org"),
    )
    git_schemes: tuple[str, ...] = _setting(
        "How git repositories are fetched: https, http, git, with commas between them.", _git_schemes, ("https",)
    )
    git_timeout_sec: float = _setting("How long a git repository may take to come.", _number, 60.0, low=1, high=3600)
    workspace_cap_mb: int = _setting("The size of a workspace, in MiB.", _whole, 256, low=1, high=1048576)
    workspace_noexec: bool = _setting(
        "Whether files in /workspace and /tmp of the interpreter service's runs cannot be executed.", _flag, True
    )
    artifact_ttl_hours: float = _setting("Hours for which artifacts are kept.", _number, 24.0, low=0)
    max_artifact_bytes_per_run_mb: int = _setting("The most artifacts of one run, in MiB.", _whole, 32, low=0)
    max_artifact_bytes_per_user_mb: int = _setting("The most artifacts of one user, in MiB.", _whole, 128, low=0)
    default_startup_timeout_sec: float = _setting(
        "How long a run's start may take if it does not say, and that of a program on the command line.",
        _number,
        20.0,
        low=0.1,
    )
    default_exec_timeout_sec: float = _setting(
        "How long a run's program may take if it does not say.", _number, 60.0, low=0.1
    )
    max_startup_timeout_sec: float = _setting(
        "The most time that a run may ask for its start.", _number, 300.0, low=0.1, high=86400
    )
    max_exec_timeout_sec: float = _setting(
        "The most time that a run may ask for its program.", _number, 3600.0, low=0.1, high=86400
    )
    cancel_grace_seconds: float = _setting(
        "How long a cancelled program may go on after it was told to end.", _number, 5.0, low=0, high=300
    )
    supported_spec_versions: tuple[str, ...] = _setting(
        "Versions of the interpreter service's specification that requests may name.", _texts, ("1.0", "1.1")
    )
    idempotency_ttl_sec: float = _setting("How long an idempotency key stands for its request.", _number, 600.0, low=1)
    session_ttl_sec: float = _setting(
        "How long a session lives; requests may ask for less.", _number, 3600.0, low=1, high=31536000
    )
    max_runs_per_session: int | None = _setting("The most runs that one session may have had.", _whole, 1000, low=1)
    max_sessions_per_user: int | None = _setting("Sessions that one user may have at once.", _whole, 100, low=1)
    max_cpu_seconds_per_day: float | None = _setting(
        "The most processor time that the runs of one user may use in a day (UTC); by default any.", _number, low=0
    )
    reaper_interval_sec: float = _setting(
        "Time between two looks for sessions whose time is over.", _number, 5.0, low=0.1
    )
    token_ttl_sec: float = _setting("How long a token for a sandbox can be used.", _number, 600.0, low=1, high=900)
    token_key_rotation_sec: float = _setting(
        "How long one key signs tokens for sandboxes before the next one does.", _number, 86400.0, low=1
    )
    token_bind_address: bool = _setting(
        "Whether a token for a sandbox can be used only from the address that asked for it.", _flag, False
    )
    lease_ttl_sec: float = _setting(
        "How long a sandbox is kept after it was last asked for, refreshed or said to be needed.",
        _number,
        3600.0,
        low=1,
    )
    idle_timeout_sec: float = _setting("A sandbox that nobody used for this long is idle.", _number, 900.0, low=0.1)
    hard_ttl_sec: float = _setting("A sandbox ends after this time, used or not.", _number, 28800.0, low=1)
    reaper_grace_sec: float = _setting(
        "How long an idle sandbox, frozen meanwhile, can still be come back to.", _number, 60.0, low=0
    )
    create_wait_sec: float = _setting(
        "How long a request waits for a sandbox that is being made.", _number, 30.0, low=0, high=600
    )
    max_sandboxes_per_user: int | None = _setting("Sandboxes that one user may have.", _whole, 100, low=1)
    pool_sandboxes: int = _setting("Sandboxes kept ready for those who ask for one.", _whole, 2, low=0, high=1024)
    live_mem_mb: int = _setting(
        "The memory of a sandbox, in MiB, beside what its workspace may take.", _whole, 512, low=16, high=1048576
    )
    scoping: str = _setting(
        "What POST /sandbox/acquire gives a sandbox of its own: each thread, assistant, user or run.",
        _scoping,
        "thread",
    )
    scoping_assistants: tuple[str, ...] = _setting(
        "Assistants whose threads share one sandbox although each thread has its own, with commas between them.",
        _words,
        (),
    )
    capabilities_human: tuple[str, ...] = _setting(
        "What people may be granted in sandboxes, with commas between them.", _capabilities, _ALL_CAPABILITIES
    )
    capabilities_agent: tuple[str, ...] = _setting(
        "What agents may be granted in sandboxes, with commas between them.", _capabilities, _ALL_CAPABILITIES
    )
    capabilities_roles: tuple[str, ...] = _setting(
        "What users with certain roles may be granted at most: viewer=fs_read,builder=fs_read+fs_write+exec.",
        _role_capabilities,
        (),
    )
    providers: tuple[RemoteServer, ...] = _setting(
        "Other servers that sandboxes may be on: a JSON list of objects with name, url, api_key or api_key_file, and "
        "where wanted mode (relay or direct) and ca.",
        read_servers,
        (),
        secret=True,
    )
    mcp_dotted_names: bool = _setting(
        "Whether the tool sandbox_run is listed as sandbox.run, with a schema that has oneOf. Big MCP clients refuse "
        "either.",
        _flag,
        False,
    )
    log_level: str = _setting("The least severe log line that is written: debug, info, warning, error.", _level, "info")

    def warm_boxes(self, runtime: str) -> int:
        """How many boxes are kept ready for each image in use, of a runtime that another program makes boxes for."""
        return {"docker": self.docker_warm, "gvisor": self.gvisor_warm}.get(runtime, 0)

    def docker_seccomp_profile(self) -> str | None:
        """The profile that is named; raises ``InvalidRequest`` where it is none."""
        if self.docker_seccomp is None:
            return None
        import json

        try:
            text = self.docker_seccomp.read_text()
            if not isinstance(json.loads(text), dict):
                raise ValueError("not an object")
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"SANDBOX_DOCKER_SECCOMP: {self.docker_seccomp} is no profile: {error}", field="docker_seccomp"
            ) from None
        return text

    def known_languages(self) -> Languages:
        """Every language of this installation; raises ``InvalidRequest`` naming what of a setting is wrong."""
        found = BUILT_IN if self.languages is None else _read_languages(self.languages)
        for name in self.images_by_language:
            try:
                found.named(name)
            except InvalidRequest as error:
                raise InvalidRequest(f"SANDBOX_LANGUAGE_IMAGES: {error.message}", field="language_images") from None
        return found

    @property
    def images_by_language(self) -> dict[str, str]:
        """The images that were chosen for languages, by the names that were given."""
        return dict(word.split("=", 1) for word in self.language_images)

    @property
    def several_users(self) -> bool:
        """Whether there can be others than the holder of the key."""
        return self.auth_jwt_secret is not None or self.auth_jwks_file is not None

    @property
    def agent_sockets(self) -> Path:
        """Where clients reach the agents of sandboxes."""
        return self.data_dir / "run" / "agents"


_MOST_LANGUAGES_BYTES = 256 * 1024


def _read_languages(path: Path) -> Languages:
    import tomllib

    from tidebox.model.language_file import read_languages

    def wrong(reason: object) -> InvalidRequest:
        return InvalidRequest(f"SANDBOX_LANGUAGES: {path}: {reason}", field="languages")

    try:
        # What is no file might never end, or never begin.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise wrong("not a file")
            content = file.read(_MOST_LANGUAGES_BYTES + 1)
        if len(content) > _MOST_LANGUAGES_BYTES:
            raise wrong(f"longer than {_MOST_LANGUAGES_BYTES} bytes")
        document = tomllib.loads(content.decode())
    except OSError as error:
        raise wrong(error.strerror) from None
    except (ValueError, RecursionError) as error:
        raise wrong(f"not TOML: {error}") from None
    try:
        return read_languages(document)
    except InvalidRequest as error:
        raise wrong(error.message) from None


def load_settings(**overrides: Any) -> Settings:
    """The settings of this process: ``overrides`` win over the environment, the environment over the defaults."""
    values = _from_environment(os.environ) | overrides
    for item in dataclasses.fields(Settings):
        if item.name in values:
            _check_range(PREFIX + item.name.upper(), values[item.name], item.metadata)
    return Settings(**values)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for item in dataclasses.fields(Settings):
        name = PREFIX + item.name.upper()
        text = environment.get(name)
        if text:
            try:
                found[item.name] = item.metadata["parse"](text)
            except ValueError as error:
                shown = "" if item.metadata["secret"] else f", not {text!r}"
                raise InvalidRequest(f"{name}: {error}{shown}", field=name) from None
    return found


def _check_range(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    low, high = limits["low"], limits["high"]
    if value is None:
        return
    if low is not None and not value >= low:
        raise InvalidRequest(f"{name}: must be at least {low:g}, not {value!r}", field=name)
    if high is not None and not value <= high:
        raise InvalidRequest(f"{name}: must be at most {high:g}, not {value!r}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of clients of a server, from the environment."""

    url: str | None = None
    """``TIDEBOX_URL``: the server."""
    api_key: str | None = field(default=None, repr=False)
    """``TIDEBOX_API_KEY``: the key for it."""
    profile: str | None = None
    """``TIDEBOX_PROFILE``: the stored server to use instead of the current one."""
    config_dir: Path
    """Where profiles are stored: ``tidebox`` in the user's configuration directory."""


def load_client_settings() -> ClientSettings:
    """The client settings of this process."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return ClientSettings(
        url=os.environ.get("TIDEBOX_URL") or None,
        api_key=os.environ.get("TIDEBOX_API_KEY") or None,
        profile=os.environ.get("TIDEBOX_PROFILE") or None,
        config_dir=Path(base) / "tidebox",
    )


def wants_colors() -> bool:
    """Whether colours may be shown on a terminal (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def session_environment() -> dict[str, str]:
    """The environment variables that tell where programs, the login session and the container engine are."""
    names = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}


def package_environment() -> dict[str, str]:
    """The environment variables for uv and npm: their own settings, and where the network and their files are."""
    known = {"PATH", "HOME", "LANG", "NETRC", "XDG_CONFIG_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"}
    return {
        name: value
        for name, value in os.environ.items()
        if name in known or name.upper().startswith(("UV_", "NPM_CONFIG_")) or name.upper().endswith("_PROXY")
    }


def mirror_environment() -> dict[str, str]:
    """The environment variables for pip, npm and apt when they are asked for their mirrors."""
    more = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "APT_CONFIG"}
    return package_environment() | more


def environment_variable(name: str) -> str | None:
    """A variable of the caller's own environment that they asked to hand on to a program."""
    return os.environ.get(name)
