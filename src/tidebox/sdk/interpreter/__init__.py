"""The interpreter service of a server, from the outside: sessions, runs, their logs and files, and what admins see."""
