package model

import (
	"fmt"
	"math"
)

// Scaling changes rotary frequencies so that a model reaches further than it was
// first trained for.
type Scaling struct {
	Kind     ScalingKind
	Factor   float64 // above 1
	Low      float64 // Llama 3: periods in the original length below which a frequency is scaled in full
	High     float64 // Llama 3: periods above which a frequency stays
	Original int     // Llama 3: the length of the first training
}

// ScalingKind names a rule.
type ScalingKind uint8

const (
	ScalingNone   ScalingKind = iota
	ScalingLinear             // all frequencies divided by Factor
	ScalingLlama3             // low ones divided by Factor, high ones kept, a blend between
)

func (s Scaling) validate() error {
	switch {
	case s.Kind == ScalingNone:
		return nil
	case s.Kind > ScalingLlama3:
		return fmt.Errorf("rope scaling of unknown kind %d", s.Kind)
	case !(s.Factor >= 1):
		return fmt.Errorf("rope scaling factor is %g, must be at least 1", s.Factor)
	case s.Kind == ScalingLlama3 && (s.Original <= 0 || !(s.Low > 0) || !(s.High > s.Low)):
		return fmt.Errorf("rope scaling has original length %d, low %g, high %g; the length must be positive and 0 < low < high", s.Original, s.Low, s.High)
	}
	return nil
}

// frequency is the angle per position of the i-th pair of a head.
func (c Config) frequency(i int) float64 {
	f := math.Pow(c.RopeTheta, -2*float64(i)/float64(c.HeadDim))
	switch s := c.RopeScaling; s.Kind {
	case ScalingLinear:
		return f / s.Factor
	case ScalingLlama3:
		periods := float64(s.Original) * f / (2 * math.Pi)
		keep := (periods - s.Low) / (s.High - s.Low)
		keep = min(max(keep, 0), 1)
		return f * (keep + (1-keep)/s.Factor)
	}
	return f
}

// RopeTable has a row of HeadDim values per position: the cosines of its pairs'
// angles, then the sines.
func (c Config) RopeTable(positions int) []float32 {
	half := c.HeadDim / 2
	t := make([]float32, positions*c.HeadDim)
	freq := make([]float64, half)
	for i := range freq {
		freq[i] = c.frequency(i)
	}
	for p := range positions {
		row := t[p*c.HeadDim : (p+1)*c.HeadDim]
		for i, f := range freq {
			a := float64(p) * f
			row[i], row[half+i] = float32(math.Cos(a)), float32(math.Sin(a))
		}
	}
	return t
}
