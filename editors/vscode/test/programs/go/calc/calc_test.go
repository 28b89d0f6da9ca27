package calc

import "testing"

func TestRight(t *testing.T) {
	if Add(1, 1) != 2 {
		t.Fatal("no sum")
	}
}

func TestWrong(t *testing.T) {
	t.Errorf("got %d", Add(1, 1))
	t.Errorf("twice\nin lines")
}

func TestParts(t *testing.T) {
	t.Run("one", func(t *testing.T) { t.Error("one is wrong") })
	t.Run("two", func(t *testing.T) {})
}

func TestLater(t *testing.T) { t.Skip("later") }

func TestPanics(t *testing.T) {
	var p *int
	*p = 1
}
