package schema

// Withheld is a condition: the account of this DID is not shown to strangers.
func Withheld(did string) string {
	return ` EXISTS (SELECT FROM profiles WHERE profiles.did = ` + did + ` AND profiles.withheld) `
}
