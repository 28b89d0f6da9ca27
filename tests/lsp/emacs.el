;; What a user of eglot has in the configuration (docs/lsp.md), and then what that user does: run a file that fails, see
;; the mark, mend it, see the mark vanish. Says what it saw as JSON in the file that RESULT names.
(require 'eglot)
(require 'json)
(setq command (split-string (getenv "TIDEBOX_LSP") "\n"))
(setq patience (string-to-number (getenv "PATIENCE")))

;; configuration
(require 'eglot)
(add-to-list 'eglot-server-programs
             (cons '(python-mode js-mode go-mode java-mode sh-mode) command))
(defun sandbox-run ()
  "Run the file of this buffer in the sandbox."
  (interactive)
  (let ((to-uri (if (fboundp 'eglot-path-to-uri) 'eglot-path-to-uri 'eglot--path-to-uri)))
    (jsonrpc-async-request (eglot-current-server) :workspace/executeCommand
                           (list :command "tidebox.run"
                                 :arguments (vector (list :uri (funcall to-uri buffer-file-name))))
                           :success-fn #'ignore :timeout nil)))
;; end of the configuration

(setq eglot-connect-timeout patience eglot-sync-connect patience)

(defun until-true (fact)
  (let ((end (+ (float-time) patience)))
    (while (and (not (funcall fact)) (< (float-time) end)) (accept-process-output nil 0.05))
    (if (funcall fact) t :json-false)))

(defun marks ()
  (mapcar (lambda (each)
            `((line . ,(line-number-at-pos (flymake-diagnostic-beg each))) (message . ,(flymake-diagnostic-text each))))
          (flymake-diagnostics)))

(find-file (concat (getenv "FOLDER") "/main.py"))
(python-mode)
(call-interactively 'eglot)
(let (failing vanished)
  (sandbox-run)
  (until-true (lambda () (flymake-start) (marks)))
  (setq failing (marks))
  ;; Not saved: what the buffer shows is what runs.
  (goto-char (point-min))
  (forward-line 1)
  (delete-region (point) (line-end-position))
  (insert "    return 1")
  (eglot--signal-textDocument/didChange)
  (sandbox-run)
  (setq vanished (until-true (lambda () (null (marks)))))
  (with-temp-file (getenv "RESULT")
    (insert (json-encode `((failing . ,(vconcat failing)) (vanished . ,vanished))))))
(eglot-shutdown (eglot-current-server))
