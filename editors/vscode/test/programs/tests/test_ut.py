import unittest


class Sums(unittest.TestCase):
    def test_right(self):
        print("out")
        self.assertEqual(1 + 1, 2)

    def test_wrong(self):
        """It is wrong."""
        self.assertEqual(1 + 1, 3, "no sum")

    def test_raises(self):
        raise ValueError("broken\nin two lines")

    @unittest.skip("later")
    def test_later(self):
        pass

    def test_parts(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)
