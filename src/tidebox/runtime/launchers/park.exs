# Parks an Elixir and makes it the program it is handed: `elixir /.tidebox/park.exs`.
#
# The run-time system reads stdin ahead on behalf of its I/O server, so the program block is asked of that server, as bytes;
# what follows the block waits there for the program. No module is defined: the program finds none of ours.

# What a small program touches, loaded while nobody waits.
{:ok, device} = StringIO.open("")
IO.puts(device, inspect({:ok, "a", 1.5, %{b: [1]}}))
StringIO.close(device)
Enum.each([Integer, Float, Keyword, MapSet, Regex, Stream, Task, Agent, GenServer, Process, Exception, :timer, :rand], &Code.ensure_loaded/1)
Code.eval_string("for x <- 1..2, do: Enum.map([x], &(&1 + 1))")

read = fn size ->
  case if(size == 0, do: "", else: IO.binread(:stdio, size)) do
    bytes when is_binary(bytes) and byte_size(bytes) == size -> bytes
    :eof when size == 4 -> System.halt(0)
    _ -> System.halt(126)
  end
end

:ok = :io.setopts(:standard_io, encoding: :latin1)
<<total::32>> = read.(4)
block = read.(total)
:ok = :io.setopts(:standard_io, encoding: :unicode)

<<n1::32, mode::binary-size(n1), n2::32, cwd::binary-size(n2), n3::32, path::binary-size(n3), n4::32, source::binary-size(n4),
  n5::32, _cpu::binary-size(n5), n6::32, env::binary-size(n6), n7::32, argv::binary-size(n7)>> = block

for item <- String.split(env, <<0>>, trim: true) do
  [name, value] = String.split(item, "=", parts: 2)
  System.put_env(name, value)
end

if cwd != "", do: File.cd!(cwd)
System.argv(if argv == "", do: [], else: String.split(argv, <<0>>))
Code.unrequire_files(Code.required_files())

case mode do
  "code" ->
    Code.eval_string(source, [])

  "script" ->
    File.write!(path, source)
    Code.require_file(path)

  "file" ->
    Code.require_file(path)
end
