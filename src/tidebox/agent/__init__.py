"""The program inside a box: its init, which starts processes, moves their bytes and serves files for the host.

A box's agent is forked, not executed, so that the image needs no Python: every module is imported before that, none
later. Rules that follow: standard library only, nothing imported lazily (no name look-ups through NSS, no text codecs
but UTF-8), no threads, no call that a hostile program could make block.
"""
