"""The runtimes, which isolate untrusted programs in boxes, and what is around them: images, layers, warm pool, driver.

``base`` is the contract that every runtime implements. Besides each other, modules here may import only ``errors``,
``model``, ``untrusted_files``, ``wire`` and ``egress``.
"""
