package web

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

func TestEveryTextExistsAndIsUsed(t *testing.T) {
	t.Parallel()
	webtest.RequireTexts(t, texts(), say, "word_", "detail_", "age_", "expected_", "error_heading_")
	webtest.RequireNoText(t)
}

func TestTextsHaveValuesAndForms(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1 time", say("letter_times", 1))
	require.Equal(t, "1,234 times", say("letter_times", 1234))
	require.Equal(t, "Not implemented: {1} {0}", Texts{"other": "Not implemented: {0}"}.Say("other", "{1} {0}"),
		"placeholders in a value must not be replaced")
}
