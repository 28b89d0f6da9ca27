"""Recipes: images of languages as data, made of Debian packages, npm packages, and what is worked out ahead in them.

An image that is made by a recipe has the recipe's own name, and stands for the names under which people know such an
image from elsewhere, unless one of that name was imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tidebox.errors import InvalidRequest
from tidebox.model.languages import GO_BUILD, GO_CACHE, JAVAC_ARCHIVE, RUST_LIBRARIES

VERSION = 1
"""Counts the ways in which recipes were carried out; part of what a layer of theirs is known by."""
LIBRARIES = "libraries"
OUT = "out"
"""Where in the workspace a step leaves its files: they become the image's, from the root on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command that is run in a box of the image; what it leaves in ``OUT`` is put on top of the image."""

    command: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()
    """The files placed in its workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One recipe."""

    name: str
    apt: tuple[str, ...] = ()
    """Debian packages of a root file system; without any it is on the machine's own system."""
    node: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """Links in the image: path and target, in which {arch} is npm's word for the machine."""
    steps: tuple[Step, ...] = ()
    library: Step | None = None
    """Steps that make libraries of further packages whose files alone are none yet; ``LIBRARIES`` has their names."""
    library_tools: tuple[str, ...] = ()
    """Debian packages that this needs."""
    stands_for: tuple[str, ...] = ()
    """Images of other names, without their tags."""

    def with_packages(self, apt: Sequence[str]) -> Recipe:
        """The recipe of an image that has more Debian packages: libraries for programs in its language."""
        if not apt:
            return self
        if not self.apt:
            raise InvalidRequest(f"the recipe {self.name} makes its image without Debian packages", field="apt")
        steps = self.steps
        if self.library is not None:
            names = (LIBRARIES, "".join(f"{name}\n" for name in apt).encode())
            steps = (*steps, replace(self.library, files=(*self.library.files, names)))
        return replace(self, apt=(*self.apt, *self.library_tools, *apt), steps=steps)

    @property
    def image(self) -> str:
        """The name of the image that it makes."""
        return f"tidebox/{self.name}"


_HELLO_JAVA = b"""import java.util.*;
import java.util.function.*;
import java.util.stream.*;

public class Hello {
    record Point(int x, int y) {}

    interface Shape { double area(); }

    enum Color { RED, GREEN }

    public static void main(String[] args) throws Exception {
        Map<String, List<Integer>> numbers = new TreeMap<>();
        for (String word : List.of("one", "two")) numbers.computeIfAbsent(word, key -> new ArrayList<>()).add(1);
        System.out.println(numbers + " " + new Point(1, 2) + " " + Color.RED + String.format(" %d %.2f", 3, 4.0));
        System.out.println(IntStream.range(0, 9).boxed().map(each -> each * 2).collect(Collectors.toList()));
        Scanner scanner = new Scanner(System.in);
        while (scanner.hasNextLine()) System.out.println(scanner.nextLine().toUpperCase());
        Function<Integer, Integer> twice = each -> each + each;
        switch (args.length) {
            case 0 -> System.err.println(twice.apply(21));
            default -> throw new IllegalStateException("never");
        }
    }
}
"""
# The classes that the compiler loads, laid out as the virtual machine maps them.
_ARCHIVE = f"""set -e
mkdir -p {OUT}{JAVAC_ARCHIVE.rpartition("/")[0]}
javac -J-XX:ArchiveClassesAtExit={OUT}{JAVAC_ARCHIVE} -J-XX:+UseSerialGC -J-XX:-UsePerfData -J-XX:TieredStopAtLevel=1 \\
    -g -proc:none -d /tmp Hello.java
"""

# The library, compiled, and where each package of it is.
_GO_LIBRARY = f"""set -e
export GOCACHE=/workspace/{OUT}{GO_CACHE} GOPATH=/tmp/go GOPROXY=off GOTOOLCHAIN=local GOTELEMETRY=off
mkdir -p "$GOCACHE"
go list -export -f '{{{{if .Export}}}}packagefile {{{{.ImportPath}}}}={{{{.Export}}}}{{{{end}}}}' std |
    sed 's#/workspace/{OUT}##' >{OUT}{GO_BUILD}.importcfg
tools=$(go env GOTOOLDIR) listed={GO_BUILD}.importcfg
cat >{OUT}{GO_BUILD} <<END
"$tools/compile" -p main -complete -importcfg $listed -o "\\$1/main.a" "\\$2" >/dev/null 2>&1 &&
    "$tools/link" -importcfg $listed -s -w -o "\\$1/main" "\\$1/main.a" >/dev/null 2>&1 && exit 0
END
"""

_REGISTRY = "/usr/share/cargo/registry"
_CRATES_FILES = (
    ("Cargo.toml", b'[package]\nname = "all"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n'),
    ("src/lib.rs", b""),
    (
        ".cargo/config.toml",
        f'[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "{_REGISTRY}"\n'.encode(),
    ),
)
# Packages of crates are their sources: each that was asked for is compiled, with those it needs, and the compiler told.
_CRATES = f"""set -e
mkdir -p {OUT}{RUST_LIBRARIES}
registry={_REGISTRY}
crates=
for crate in $(sed -n 's/^librust-\\(.*\\)-dev$/\\1/p' {LIBRARIES} | sed 's/+.*//; s/-[0-9.]*$//'); do
    found=$(ls $registry | sed -n 's/-[0-9][0-9.]*[^-]*$//p' | while read -r name; do
        [ "$(printf %s "$name" | tr _ -)" != "$crate" ] || echo "$name"
    done | head -n 1)
    [ -n "$found" ] || {{ echo "there is no crate $crate" >&2; exit 1; }}
    echo "$found = \\"*\\"" >>Cargo.toml
    crates="$crates $found"
done
export CARGO_HOME=/tmp/cargo
cargo build --offline --release
echo "-Ldependency={RUST_LIBRARIES}" >{OUT}{RUST_LIBRARIES}/arguments
cp target/release/deps/*.rlib {OUT}{RUST_LIBRARIES}
cp target/release/deps/*.so {OUT}{RUST_LIBRARIES} 2>/dev/null || :
for crate in $crates; do
    name=$(printf %s "$crate" | tr - _)
    file=$(cd {OUT}{RUST_LIBRARIES} && ls "lib$name"-*.rlib "lib$name"-*.so 2>/dev/null | head -n 1)
    echo "--extern=$name={RUST_LIBRARIES}/$file" >>{OUT}{RUST_LIBRARIES}/arguments
done
"""

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            # The package of the platform alone: what is called esbuild starts node to start the same program.
            Recipe(
                name="typescript",
                node=("@esbuild/linux-{arch}",),
                links=(("usr/local/bin/esbuild", "/node_modules/@esbuild/linux-{arch}/bin/esbuild"),),
            ),
            Recipe(
                name="go",
                apt=("golang-go", "ca-certificates"),
                steps=(Step(command=("sh", "-c", _GO_LIBRARY)),),
                stands_for=("golang",),
            ),
            Recipe(
                name="java",
                apt=("default-jdk-headless",),
                steps=(Step(command=("sh", "-c", _ARCHIVE), files=(("Hello.java", _HELLO_JAVA),)),),
                stands_for=("eclipse-temurin", "openjdk"),
            ),
            Recipe(name="ruby", apt=("ruby",), stands_for=("ruby",)),
            Recipe(name="r", apt=("r-base-core",), stands_for=("r-base",)),
            Recipe(name="c", apt=("gcc", "libc6-dev"), stands_for=("gcc",)),
            Recipe(name="cpp", apt=("g++",)),
            Recipe(
                name="rust",
                apt=("rustc",),
                library=Step(command=("sh", "-c", _CRATES), files=_CRATES_FILES),
                library_tools=("cargo",),
                stands_for=("rust",),
            ),
        )
    }
)
_STANDING_FOR = {name: recipe for recipe in RECIPES.values() for name in recipe.stands_for}
# Its packages are not Debian's: who wants it imports the image that its makers publish.
_IMPORTED = ("dotnet/sdk", "dotnet/runtime")


def recipe_named(name: str) -> Recipe:
    """The recipe of a name; raises ``InvalidRequest``."""
    if name not in RECIPES:
        raise InvalidRequest(f"no recipe {name[:64]!r}; there are {', '.join(sorted(RECIPES))}", field="recipe")
    return RECIPES[name]


def recipe_for(image: str) -> Recipe | None:
    """The recipe whose image stands for one of this name, if any does."""
    repository = image.partition(":")[0]
    own = RECIPES.get(repository.removeprefix("tidebox/")) if repository.startswith("tidebox/") else None
    return own or _STANDING_FOR.get(repository)


def is_imported_only(image: str) -> bool:
    """Whether there is no other way to have an image of this name than to import it."""
    return image.partition(":")[0].endswith(_IMPORTED)
