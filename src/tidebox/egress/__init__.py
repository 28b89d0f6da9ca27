"""Egress: how programs of a box reach the hosts of an allow-list, and nothing else.

Which process does what
    The template makes the network of a box with egress: every address leads to one listener in it, names to one
    resolver (``spawner.outward``). Their descriptors come to the server with the box, and programs never hold one.
    The server (``client``) starts the egress process, with itself where it has a list and else with the first box that
    needs it, hands it those descriptors with the rules of the box, and keeps copies: a process that died is started
    anew and serves the same boxes, with the same pinned names.
    The egress process (``process``, ``python -m tidebox.egress``), which has no privilege and an empty environment,
    accepts, decides, dials in the machine's network, copies bytes and answers the box's questions for names.

Messages (``messages``) are typed and go through one stream per box: its end is the end of the box.
    server -> process   Serve (the rules, names pinned before, limits), Ask (what was counted; may close connections)
    process -> server   Seen (a connection or name that was allowed or denied), Pinned, Counted
    Both sides bound what they are told.

Questions for names (``dns_server``) come to the box's own address, as datagrams to sockets of their own, as connections
to the one listener.

From accept to the first byte (``connection``)
    The address must be allowed by address, or be pinned to a name that is allowed; else it is reset, on port 80 with a
    403 that names the reason. The process dials, then looks at the client's first bytes without taking them (they stay
    in the socket): the server name of TLS, or the first Host of HTTP, must be allowed and pinned to this address.
    Where a secret rule of the box has that name, the connection is handed over::

        ServedBox.interceptor.run(intercepted)      # of type interceptor.Interceptor, made where ``Serve`` is taken

    All other connections are copied as they are (``relay``); where the box has placeholders, what it sends is shown to
    ``interceptor.scan()`` first.
"""
