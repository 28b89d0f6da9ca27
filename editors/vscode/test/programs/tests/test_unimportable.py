import unittest
import nothing_here


class T(unittest.TestCase):
    def test_x(self):
        pass
