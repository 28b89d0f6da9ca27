import pytest


def helper(value):
    assert value == 2, "not two"


def test_passes():
    print("hello")


class TestGroup:
    def test_fails(self):
        helper(1)

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_params(self, n):
        assert n != 2

    @pytest.mark.skip(reason="later")
    def test_skipped(self):
        pass


@pytest.fixture
def broken():
    raise RuntimeError("no fixture")


def test_error(broken):
    pass
