// A box for code: a plain text area until the editor is there.
import { useEffect, useRef } from "preact/hooks";
import type { Editor } from "../editor";

interface Props {
  label: string;
  language: string;
  value: string;
  onChange: (text: string) => void;
  onRun?: () => void;
}

export function Code({ label, language, value, onChange, onRun }: Props) {
  const holder = useRef<HTMLDivElement>(null);
  const editor = useRef<Editor | null>(null);
  const latest = useRef({ onChange, onRun, language });
  latest.current = { onChange, onRun, language };

  useEffect(() => {
    const parent = holder.current!;
    // Made by hand: it is replaced by the editor, which no framework may see.
    const area = document.createElement("textarea");
    area.setAttribute("aria-label", label);
    area.spellcheck = false;
    area.value = value;
    area.addEventListener("input", () => latest.current.onChange(area.value));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        latest.current.onRun?.();
      }
    });
    parent.replaceChildren(area);
    let gone = false;
    void import("../editor").then(
      ({ openEditor }) => {
        if (gone) return;
        const focus = document.activeElement === area;
        const selection = { from: area.selectionStart, to: area.selectionEnd };
        area.remove();
        editor.current = openEditor({
          parent,
          label,
          text: area.value,
          selection: focus ? selection : undefined,
          focus,
          language: latest.current.language,
          onChange: (text) => latest.current.onChange(text),
          onRun: () => latest.current.onRun?.(),
        });
      },
      () => {}, // the text area does
    );
    return () => {
      gone = true;
      editor.current?.close();
      editor.current = null;
    };
  }, []);

  useEffect(() => {
    const area = holder.current?.querySelector(":scope > textarea") as HTMLTextAreaElement | null;
    if (editor.current && editor.current.text !== value) editor.current.text = value;
    else if (area && area.value !== value) area.value = value;
  }, [value]);
  useEffect(() => editor.current?.setLanguage(language), [language]);

  return <div class="code" ref={holder} />;
}
