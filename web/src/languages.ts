// How code in a language becomes the command of a run.
import type { RunSpec } from "./model";

interface Language {
  /** The command that takes the code as its last word; without one the server is told the language of a file. */
  evaluate?: string[];
  file: string;
  example: string;
}

const LANGUAGES: Record<string, Language> = {
  python: { evaluate: ["python", "-c"], file: "main.py", example: 'print("hello, tide")\n' },
  javascript: { evaluate: ["node", "-e"], file: "main.js", example: 'console.log("hello, tide");\n' },
  typescript: { file: "main.ts", example: 'const who: string = "tide";\nconsole.log(`hello, ${who}`);\n' },
  shell: { evaluate: ["sh", "-c"], file: "main.sh", example: "echo hello, tide\n" },
  bash: { file: "main.bash", example: 'words=(hello, tide)\necho "${words[@]}"\n' },
  elixir: { evaluate: ["elixir", "-e"], file: "main.exs", example: 'IO.puts("hello, tide")\n' },
  go: { file: "main.go", example: 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("hello, tide")\n}\n' },
  java: {
    file: "Main.java",
    example: 'public class Main {\n  public static void main(String[] args) {\n    System.out.println("hello, tide");\n  }\n}\n',
  },
  ruby: { file: "main.rb", example: 'puts "hello, tide"\n' },
  r: { file: "main.R", example: 'cat("hello, tide\\n")\n' },
  c: { file: "main.c", example: '#include <stdio.h>\n\nint main(void) {\n  puts("hello, tide");\n}\n' },
  cpp: { file: "main.cpp", example: '#include <iostream>\n\nint main() {\n  std::cout << "hello, tide\\n";\n}\n' },
  rust: { file: "main.rs", example: 'fn main() {\n    println!("hello, tide");\n}\n' },
};

/** What is known of a language; of one that the server's operator has added, nothing but its name. */
const languageOf = (name: string): Language => LANGUAGES[name] ?? { file: "main", example: "" };

export const exampleOf = (name: string): string => languageOf(name).example;

export const isExample = (code: string): boolean => Object.values(LANGUAGES).some((each) => each.example === code);

/** The file that the main program of a spec was put into, if it was. */
export const mainFileOf = (spec: RunSpec): string | undefined => (spec.language ? spec.command[0] : undefined);

// A word of a command is at most 128 KiB long.
const LONGEST_WORD = 100_000;

const encodedText = (text: string) => toBase64(new TextEncoder().encode(text));

export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary);
}

export function fromBase64(text: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(text), (char) => char.charCodeAt(0)));
}

/** What a spec needs to run a program; `file` is what the server calls the main file of the language. */
export function programOf(name: string, code: string, file?: string): Pick<RunSpec, "command" | "files" | "language"> {
  const language = languageOf(name);
  if (language.evaluate && new TextEncoder().encode(code).length <= LONGEST_WORD) {
    return { command: [...language.evaluate, code] };
  }
  const path = name === "java" ? javaFileOf(code) : (file ?? language.file);
  return { language: name, command: [path], files: [{ path, content_b64: encodedText(code) }] };
}

// A public class must be in a file of its name.
function javaFileOf(code: string): string {
  const found = /^\s*public\s+(?:\w+\s+)*?(?:class|record|enum|interface)\s+(\w+)/m.exec(code) ?? /^\s*class\s+(\w+)/m.exec(code);
  return found ? `${found[1]}.java` : languageOf("java").file;
}

/** The language and the code of a spec that was made here. */
export function codeOf(spec: RunSpec): { language: string; code: string } | null {
  const file = spec.files?.find((each) => each.path === mainFileOf(spec));
  if (spec.language && file) return { language: spec.language, code: fromBase64(file.content_b64) };
  for (const [name, language] of Object.entries(LANGUAGES)) {
    const [first, second, third] = spec.command;
    if (language.evaluate && first === language.evaluate[0] && second === language.evaluate[1]) {
      return { language: name, code: third ?? "" };
    }
  }
  return null;
}
