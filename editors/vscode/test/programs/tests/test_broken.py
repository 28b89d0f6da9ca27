import nothing_here


def test_x():
    pass
