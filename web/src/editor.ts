// The code editor. Loaded when a page has one.
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import {
  bracketMatching,
  HighlightStyle,
  indentOnInput,
  indentUnit,
  StreamLanguage,
  syntaxHighlighting,
} from "@codemirror/language";
import { c, cpp, java } from "@codemirror/legacy-modes/mode/clike";
import { go } from "@codemirror/legacy-modes/mode/go";
import { r } from "@codemirror/legacy-modes/mode/r";
import { ruby } from "@codemirror/legacy-modes/mode/ruby";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, type Extension, Prec } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { elixir } from "codemirror-lang-elixir";
import { nonce } from "./nonce";

const languages: Record<string, () => Extension> = {
  python: () => [python(), indentUnit.of("    ")],
  javascript: () => javascript(),
  typescript: () => javascript({ typescript: true }),
  shell: () => StreamLanguage.define(shell),
  bash: () => StreamLanguage.define(shell),
  go: () => [StreamLanguage.define(go), indentUnit.of("\t")],
  java: () => StreamLanguage.define(java),
  c: () => StreamLanguage.define(c),
  cpp: () => StreamLanguage.define(cpp),
  rust: () => StreamLanguage.define(rust),
  ruby: () => StreamLanguage.define(ruby),
  r: () => StreamLanguage.define(r),
  elixir: () => elixir(),
};

const colors = HighlightStyle.define([
  { tag: [tags.keyword, tags.modifier, tags.operatorKeyword], color: "var(--syntax-keyword)" },
  { tag: [tags.string, tags.special(tags.string), tags.regexp], color: "var(--syntax-string)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "var(--syntax-number)" },
  { tag: [tags.comment, tags.meta], color: "var(--syntax-comment)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.function(tags.propertyName)], color: "var(--syntax-function)" },
  { tag: [tags.typeName, tags.className, tags.namespace], color: "var(--syntax-type)" },
]);

/** Where a browser would write several characters, or over some, itself: it would bring styles that no policy lets be. */
const insertion = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const text = event.data;
    const selection = document.getSelection();
    const range = selection?.rangeCount ? selection.getRangeAt(0) : null;
    if (event.inputType !== "insertText" || !text || !range || view.composing) return false;
    if (range.collapsed && text.length === 1) return false;
    const from = view.posAtDOM(range.startContainer, range.startOffset);
    const to = view.posAtDOM(range.endContainer, range.endOffset);
    event.preventDefault();
    view.dispatch({ changes: { from, to, insert: text }, selection: { anchor: from + text.length }, userEvent: "input.type" });
    return true;
  },
  // Files are for the workspace, not for the text.
  drop: (event) => Boolean(event.dataTransfer?.files.length),
});

export interface Editor {
  setLanguage(name: string): void;
  text: string;
  close(): void;
}

export interface EditorOptions {
  parent: HTMLElement;
  text: string;
  selection?: { from: number; to: number };
  focus: boolean;
  label: string;
  language: string;
  onChange: (text: string) => void;
  onRun?: () => void;
}

export function openEditor(options: EditorOptions): Editor {
  const language = new Compartment();
  const extensionOf = (name: string) => languages[name]?.() ?? [];
  const run = Prec.highest(
    keymap.of([
      {
        key: "Mod-Enter",
        run: () => {
          options.onRun?.();
          return true;
        },
      },
    ]),
  );
  const view = new EditorView({
    parent: options.parent,
    state: EditorState.create({
      doc: options.text,
      selection: options.selection && { anchor: options.selection.from, head: options.selection.to },
      extensions: [
        EditorView.cspNonce.of(nonce()),
        EditorView.contentAttributes.of({ "aria-label": options.label }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) options.onChange(update.state.doc.toString());
        }),
        run,
        insertion,
        lineNumbers(),
        highlightActiveLine(),
        highlightActiveLineGutter(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        highlightSelectionMatches(),
        syntaxHighlighting(colors),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, indentWithTab]),
        language.of(extensionOf(options.language)),
      ],
    }),
  });
  if (options.focus) view.focus();
  return {
    setLanguage: (name) => view.dispatch({ effects: language.reconfigure(extensionOf(name)) }),
    get text() {
      return view.state.doc.toString();
    },
    set text(text) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
    },
    close: () => view.destroy(),
  };
}
