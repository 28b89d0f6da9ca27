-- What a user of Neovim 0.7 has in the configuration (docs/lsp.md), and then what that user does: run a file that fails,
-- see the mark, mend it, see the mark vanish. Says what it saw as JSON in the file that RESULT names.
local command, folder, result = vim.split(vim.env.TIDEBOX_LSP, "\n"), vim.env.FOLDER, vim.env.RESULT

-- configuration
local client = vim.lsp.start_client({
  name = "tidebox",
  cmd = command,
  root_dir = folder,
})
vim.api.nvim_create_autocmd("FileType", {
  pattern = { "python", "javascript", "go", "java", "sh" },
  callback = function() vim.lsp.buf_attach_client(0, client) end,
})
vim.api.nvim_create_user_command("SandboxRun", function()
  vim.lsp.buf.execute_command({ command = "tidebox.run", arguments = { { uri = vim.uri_from_bufnr(0) } } })
end, {})
-- end of the configuration

local seen = {}
local function marks()
  return vim.tbl_map(function(each) return { line = each.lnum + 1, message = each.message } end, vim.diagnostic.get(0))
end
local function until_true(fact) return vim.wait(tonumber(vim.env.PATIENCE) * 1000, fact, 50) end

vim.cmd("edit " .. folder .. "/main.py")
vim.bo.filetype = "python"
seen.attached = until_true(function() return #vim.lsp.buf_get_clients(0) > 0 and vim.lsp.buf_get_clients(0)[client] ~= nil end)
vim.lsp.codelens.refresh()
seen.lens = until_true(function() return #vim.lsp.codelens.get(0) > 0 end)
vim.cmd("SandboxRun")
until_true(function() return #marks() > 0 end)
seen.failing = marks()
-- Not saved: what the buffer shows is what runs.
vim.api.nvim_buf_set_lines(0, 1, 2, false, { "    return 1" })
vim.cmd("SandboxRun")
seen.vanished = until_true(function() return #marks() == 0 end)
vim.fn.writefile({ vim.fn.json_encode(seen) }, result)
vim.cmd("qall!")
