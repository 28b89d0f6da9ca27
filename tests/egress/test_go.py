"""Programs in Go, which resolve names and speak TLS by code of their own."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.egress.programs import ONLY_ONE
from tests.egress.test_clients import GREETING, needs_all
from tests.egress.vault import HEADER, PORT, VALUE, Vault
from tests.egress.world import TWO, Machine
from tests.patience import patient

pytestmark = [needs_all, pytest.mark.timeout(patient(300))]

START = ("sh", "-c", 'chmod +x main && exec ./main "$@"', "main")
PROGRAM = """
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
)

func get(url string) {
	request, err := http.NewRequest("GET", url, nil)
	if err != nil { panic(err) }
	if value := os.Getenv("TIDEBOX_SECRET_ONE_KEY"); value != "" { request.Header.Set("X-Key", value) }
	answer, err := http.DefaultClient.Do(request)
	if err != nil { fmt.Println("denied", err); return }
	body, err := io.ReadAll(answer.Body)
	if err != nil { panic(err) }
	fmt.Println(answer.StatusCode, string(body))
}

func main() {
	for _, url := range os.Args[1:] { get(url) }
	_, err := net.LookupHost("two.example.com")
	if found, is := err.(*net.DNSError); is { fmt.Println("unresolved", found.Timeout()) }
	datagrams, err := net.Dial("udp", "45.33.32.2:53")
	if err != nil { panic(err) }
	_, err = datagrams.Write([]byte("question"))
	fmt.Println(errors.Is(err, syscall.EPERM))
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Linked without the C library, whose resolver other programs use."""
    go = shutil.which("go")
    assert go is not None, "`make test-egress` installs it"
    place = tmp_path_factory.mktemp("go")
    (place / "main.go").write_text(PROGRAM)
    environment = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run([go, "build", "-o", "main", "main.go"], cwd=place, env=environment, check=True)
    return {"main": (place / "main").read_bytes()}


def test_what_is_allowed_is_reached_and_nothing_else(machine: Machine, program: dict[str, bytes]) -> None:
    urls = ["http://one.example.com/", "https://one.example.com/", f"http://{TWO}/", "https://two.example.com/"]
    files = {**program, "ca.pem": machine.world.ca.read_bytes()}
    env = {"SSL_CERT_FILE": "/workspace/ca.pem"}
    ran = machine.run([*START, *urls], ONLY_ONE, files=files, env=env, memory=1 << 30, pids=512)
    lines = [line for line in ran.out.splitlines() if line]
    assert lines[:2] == [f"200 {GREETING} http", f"200 {GREETING} https"], ran.err
    assert lines[2].startswith("403 egress denied: no_match")
    assert lines[3].startswith("denied ")
    assert lines[4] == "unresolved false"
    assert lines[5:] == ["true"], ran.err
    assert {reason for _, _, reason in ran.denied()} == {"no_match"}


def test_a_secret_is_used(vault: Vault, program: dict[str, bytes]) -> None:
    ran = vault.machine.run(
        [*START, f"https://one.example.com:{PORT}/go"],
        vault.egress(headers=[HEADER], secrets=["ONE_KEY"]),
        files=program,
        memory=1 << 30,
        pids=512,
    )
    assert ran.out.startswith("200 "), ran.err
    heard = vault.heard().decode()
    assert f"x-key: {VALUE}\r\n" in heard
    assert f"authorization: Bearer {VALUE}\r\n" in heard
    assert VALUE not in ran.out + ran.err
