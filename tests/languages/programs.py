"""The same programs in every language: what each prints, how each fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Programs:
    """Programs of one language."""

    greeting: str
    """Prints ``hello`` with its arguments, then each line of its input in capitals, and ends with 3."""
    failing: str
    """Fails with an exception of its own."""
    failure: str
    """The pattern of what it says of the place; empty where nothing is said."""
    hungry: str
    """Takes memory until there is none."""
    writing: str
    """Writes ``made`` to out.txt."""
    endless: str
    broken: str = ""
    """Cannot be compiled."""
    complaint: str = ""
    """The pattern of what the compiler says of the place."""
    arguments: bool = True


_C_HEAD = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <ctype.h>\n"
_C_GREETING = r"""
int main(int count, char **words) {
  printf("hello");
  for (int at = 1; at < count; at++) printf(" %s", words[at]);
  printf("\n");
  for (int each; (each = getchar()) != EOF;) putchar(toupper(each));
  return 3;
}
"""
_C_HUNGRY = "int main() { for (;;) { char *p = (char *) malloc(1 << 20); if (p) memset(p, 1, 1 << 20); } }"
_C_WRITING = 'int main() { FILE *out = fopen("out.txt", "w"); fputs("made", out); fclose(out); }'

PROGRAMS = {
    "bash": Programs(
        greeting='words=(hello "$@")\necho "${words[*]}"\nwhile read -r line; do echo "${line^^}"; done\nexit 3\n',
        failing="set -e\nno-such-command\n",
        failure=r"/workspace/main\.bash: line 2: no-such-command",
        hungry="x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done",
        writing="printf made >out.txt",
        endless="while :; do :; done",
    ),
    "c": Programs(
        greeting=_C_HEAD + _C_GREETING,
        failing="#include <stdlib.h>\nint main() { abort(); }",
        failure="",
        hungry=_C_HEAD + _C_HUNGRY,
        writing=_C_HEAD + _C_WRITING,
        endless="int main() { for (;;); }",
        broken="int main() {\n  return missing;\n}",
        complaint=r"main\.c:2:\d+: error: .*missing",
    ),
    "cpp": Programs(
        greeting=_C_HEAD + _C_GREETING,
        failing='#include <stdexcept>\nint main() { throw std::runtime_error("why"); }',
        failure="what\\(\\): +why",
        hungry=_C_HEAD + _C_HUNGRY,
        writing='#include <fstream>\nint main() { std::ofstream("out.txt") << "made"; }',
        endless="int main() { for (volatile int at = 0;; at++); }",
        broken="int main() {\n  return missing;\n}",
        complaint=r"main\.cpp:2:\d+: error: .*missing",
    ),
    "typescript": Programs(
        greeting=(
            'import { readFileSync } from "node:fs";\n'
            "const words: string[] = process.argv.slice(2);\n"
            'console.log(["hello", ...words].join(" "));\n'
            'process.stdout.write(readFileSync(0, "utf8").toUpperCase());\n'
            "process.exitCode = 3;\n"
        ),
        failing=(
            "interface Point { x: number }\n\nfunction fail(at: Point): never {\n"
            "  throw new Error(`at ${at.x}`);\n}\n\nfail({ x: 1 });\n"
        ),
        failure=r"/workspace/main\.ts:4:9",
        hungry="const all: Buffer[] = [];\nfor (;;) all.push(Buffer.alloc(1 << 20, 1));\n",
        writing='import { writeFileSync } from "node:fs";\nwriteFileSync("out.txt", "made" as string);\n',
        endless="for (;;);\n",
        broken="const a: number = 1;\nconst b: = 2;\n",
        complaint=r"main\.ts:2:9",
    ),
    "go": Programs(
        greeting=(
            'package main\n\nimport (\n\t"bufio"\n\t"fmt"\n\t"os"\n\t"strings"\n)\n\nfunc main() {\n'
            '\tfmt.Println(strings.Join(append([]string{"hello"}, os.Args[1:]...), " "))\n'
            "\tlines := bufio.NewScanner(os.Stdin)\n\tfor lines.Scan() {\n"
            "\t\tfmt.Println(strings.ToUpper(lines.Text()))\n\t}\n"
            "\tos.Exit(3)\n}\n"
        ),
        failing='package main\n\nfunc main() {\n\tpanic("why")\n}\n',
        failure=r"/workspace/main\.go:4",
        hungry=(
            "package main\n\nvar all [][]byte\n\nfunc main() {\n\tfor {\n"
            "\t\tpiece := make([]byte, 1<<20)\n\t\tfor at := range piece {\n\t\t\tpiece[at] = 1\n"
            "\t\t}\n\t\tall = append(all, piece)\n\t}\n}\n"
        ),
        writing='package main\n\nimport "os"\n\nfunc main() {\n\tos.WriteFile("out.txt", []byte("made"), 0o644)\n}\n',
        endless="package main\n\nfunc main() {\n\tfor {\n\t}\n}\n",
        broken="package main\n\nfunc main() {\n\tmissing()\n}\n",
        complaint=r"main\.go:4:\d+: undefined: missing",
    ),
    "java": Programs(
        greeting=(
            "import java.util.*;\n\npublic class Greeting {\n  public static void main(String[] words) {\n"
            '    System.out.println((String.join(" ", "hello", String.join(" ", words))).trim());\n'
            "    Scanner in = new Scanner(System.in);\n"
            "    while (in.hasNextLine()) System.out.println(in.nextLine().toUpperCase());\n"
            "    System.exit(3);\n  }\n}\n"
        ),
        failing=(
            "class Main {\n  public static void main(String[] words) {\n"
            '    throw new IllegalStateException("why");\n  }\n}\n'
        ),
        failure=r"at Main\.main\(Main\.java:3\)",
        hungry=(
            "class Main {\n  public static void main(String[] words) throws Exception {\n"
            '    var unsafe = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe");\n'
            "    unsafe.setAccessible(true);\n    var memory = (sun.misc.Unsafe) unsafe.get(null);\n"
            "    for (;;) memory.setMemory(memory.allocateMemory(1 << 20), 1 << 20, (byte) 1);\n  }\n}\n"
        ),
        writing=(
            "import java.nio.file.*;\n\nclass Main {\n"
            "  public static void main(String[] words) throws Exception {\n"
            '    Files.writeString(Path.of("out.txt"), "made");\n  }\n}\n'
        ),
        endless="class Main {\n  public static void main(String[] words) {\n    for (;;);\n  }\n}\n",
        broken="class Main {\n  int value = missing;\n}\n",
        complaint=r"Main\.java:2: error: cannot find symbol",
    ),
    "ruby": Programs(
        greeting='puts ["hello", *ARGV].join(" ")\nSTDIN.each_line { |line| puts line.chomp.upcase }\nexit 3\n',
        failing='def fail_here\n  raise "why"\nend\nfail_here\n',
        failure=r"main\.rb:2:in .*why",
        hungry='all = []\nloop { all << ("x" * (1 << 20)) }\n',
        writing='File.write("out.txt", "made")\n',
        endless="loop {}\n",
    ),
    "r": Programs(
        greeting=(
            'cat("hello", commandArgs(trailingOnly = TRUE))\ncat("\\n")\n'
            'for (line in readLines(file("stdin"))) cat(toupper(line), "\\n", sep = "")\n'
            "quit(status = 3)\n"
        ),
        failing='f <- function() stop("why")\nf()\n',
        failure=r"Error in f\(\) : why",
        hungry="all <- list()\nrepeat all[[length(all) + 1]] <- rep(1, 131072)\n",
        writing='cat("made", file = "out.txt")\n',
        endless="repeat {}\n",
    ),
    "rust": Programs(
        greeting=(
            "use std::io::BufRead;\n\nfn main() {\n    let words: Vec<String> = std::env::args().skip(1).collect();\n"
            '    println!("{}", format!("hello {}", words.join(" ")).trim());\n'
            "    for line in std::io::stdin().lock().lines() {\n"
            '        println!("{}", line.unwrap().to_uppercase());\n    }\n'
            "    std::process::exit(3);\n}\n"
        ),
        failing='fn main() {\n    panic!("why");\n}\n',
        failure=r"/workspace/main\.rs:2:5",
        hungry=(
            "fn main() {\n    let mut all: Vec<Vec<u8>> = Vec::new();\n    loop {\n"
            "        all.push(vec![1; 1 << 20]);\n    }\n}\n"
        ),
        writing='fn main() {\n    std::fs::write("out.txt", "made").unwrap();\n}\n',
        endless="fn main() {\n    loop {}\n}\n",
        broken="fn main() {\n    missing();\n}\n",
        complaint=r"main\.rs:2:5",
    ),
}
"""By language; Python, JavaScript, shell and Elixir are Fathom's, whose suite has theirs."""

LIGHT = ("bash", "c", "typescript")
"""Languages whose tools the tests have installed on the machine itself."""
