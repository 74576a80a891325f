"""Kernels written in the CuTe DSL: ours in ``sgemm.py``, NVIDIA's own through ``hgemm.py``.

``catalog.py`` lists them and ``emit.py`` has them compiled to PTX in a process of its own. The two programs import
``cutlass``, which the optional package nvidia-cutlass-dsl brings; nothing else does.
"""
